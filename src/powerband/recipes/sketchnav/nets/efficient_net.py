"""EfficientNet with group norms: an image encoder that needs no batch statistics.

Source: Tan and Le 2019, table 1 (EfficientNet-B0); Wu and He 2018 (norm).
Shapes: R rows, C channels, images of H x W pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.core.errors import ConfigError

STEM, HEAD = 32, 1280
STAGES = ((1, 16, 3, 1, 1), (6, 24, 3, 2, 2), (6, 40, 5, 2, 2), (6, 80, 3, 2, 3), (6, 112, 5, 1, 3), (6, 192, 5, 2, 4))
"""(expansion, channels, side of the kernel, stride, number of blocks) of each stage but the last."""
LAST = (6, 320, 3, 1, 1)
"""The same numbers of the last stage of EfficientNet-B0."""
SQUEEZE = 4
"""Factor by which squeeze-and-excitation reduces the channels."""
GROUP = 16
"""Channels per group of a norm; the groups are larger if the number of channels does not divide."""
POOLED_PX = 2
"""Side of the pooled feature map. It is not 1, because positions in the image matter."""


def norm(channels: int) -> nn.GroupNorm:
    """Builds a group norm with about 16 channels per group."""
    groups = max(1, channels // GROUP)
    while channels % groups:
        groups -= 1
    return nn.GroupNorm(groups, channels)


class InvertedBottleneck(nn.Module):
    """Inverted bottleneck: expansion, depthwise convolution, squeeze-and-excitation, projection."""

    def __init__(self, expand: int, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        """
        Args:
            expand: Channels of the depthwise convolution, as a multiple of `inputs`.
            inputs: Input channels.
            outputs: Output channels.
            kernel: Side of the kernel.
            stride: Stride of the depthwise convolution.
        """
        super().__init__()
        wide, squeezed = expand * inputs, max(1, inputs // SQUEEZE)
        widen: list[nn.Module] = [nn.Conv2d(inputs, wide, 1, bias=False), norm(wide), nn.SiLU()] if expand > 1 else []
        depthwise = nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False)
        self.wide = nn.Sequential(*widen, depthwise, norm(wide), nn.SiLU())
        self.squeeze, self.excite = nn.Conv2d(wide, squeezed, 1), nn.Conv2d(squeezed, wide, 1)
        self.narrow = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), norm(outputs))
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x_RCHW: Tensor) -> Tensor:
        """Transforms R images (R, inputs, H, W) of H x W pixels to (R, outputs, H / stride, W / stride)."""
        wide = self.wide(x_RCHW)
        weight = torch.sigmoid(self.excite(F.silu(self.squeeze(wide.mean((2, 3), keepdim=True)))))
        out = self.narrow(wide * weight)
        return x_RCHW + out if self.skips else out


class EfficientNet(nn.Module):
    """Encoder of images of any size. It adds two channels with the coordinates of each pixel to an image.

    Without these channels, a group norm of an empty sketch would divide by almost 0.
    """

    def __init__(self, channels: int, width: int, factor: float = 1.0, depth: float = 1.0) -> None:
        """
        Args:
            channels: C, channels of an image.
            width: Number of features.
            factor: Factor on the channels of EfficientNet-B0, 0.1 to 4 (option net.channels).
            depth: Factor on the blocks of each stage, up to 4; a stage has at least one block (option net.blocks).

        Raises:
            ConfigError: A factor is out of range.
        """
        super().__init__()
        if not 0.1 <= factor <= 4 or not 0 < depth <= 4:
            raise ConfigError(
                f"net.channels={factor:g}, net.blocks={depth:g}: net.image_encoder=efficient needs net.channels of 0.1 "
                f"to 4, and net.blocks above 0 and at most 4. Write net.channels=1 net.blocks=1."
            )

        def scaled(count: int) -> int:
            return max(8, round(count * factor / 8) * 8)

        inputs = scaled(STEM)
        layers: list[nn.Module] = [nn.Conv2d(channels + 2, inputs, 3, 2, 1, bias=False), norm(inputs), nn.SiLU()]
        for expand, outputs, kernel, stride, count in (*STAGES, LAST):
            for number in range(max(1, round(count * depth))):
                layers.append(InvertedBottleneck(expand, inputs, scaled(outputs), kernel, stride if number == 0 else 1))
                inputs = scaled(outputs)
        head = scaled(HEAD)
        layers += [nn.Conv2d(inputs, head, 1, bias=False), norm(head), nn.SiLU()]
        self.layers = nn.Sequential(*layers)
        self.linear = nn.Linear(head * POOLED_PX**2, width)

    def forward(self, x_RCHW: Tensor) -> Tensor:
        """Encodes R images (R, C, H, W) of H x W pixels, floats in 0..1, as features (R, width)."""
        rows, _, height, width = x_RCHW.shape
        down = torch.linspace(-1, 1, height, device=x_RCHW.device).view(1, 1, -1, 1).expand(rows, 1, height, width)
        right = torch.linspace(-1, 1, width, device=x_RCHW.device).expand(rows, 1, height, width)
        x_RCHW = torch.cat([x_RCHW, down, right], 1).contiguous(memory_format=torch.channels_last)
        return self.linear(F.adaptive_avg_pool2d(self.layers(x_RCHW), POOLED_PX).flatten(1))
