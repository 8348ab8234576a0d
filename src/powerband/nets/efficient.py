"""EfficientNet's blocks with group norms: an encoder of pictures that needs no statistics over a batch.

Source: Tan and Le 2019, table 1 (EfficientNet-B0); Wu and He 2018 (norm). Shapes: R rows, C channels, H, W pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEM, HEAD = 32, 1280
STAGES = ((1, 16, 3, 1, 1), (6, 24, 3, 2, 2), (6, 40, 5, 2, 2), (6, 80, 3, 2, 3), (6, 112, 5, 1, 3), (6, 192, 5, 2, 4))
"""Expansion, channels, side of the kernel, stride, blocks. B0's last stage, 320 channels, is one more of stride 1."""
LAST = (6, 320, 3, 1, 1)
SQUEEZE = 4
GROUP = 16
"""Channels of a group, as far as they divide."""
KEPT = 2
"""The last picture is averaged to so many pixels a side, not to one: where something is, matters."""


def norm(channels: int) -> nn.GroupNorm:
    """Groups of about 16 channels."""
    groups = max(1, channels // GROUP)
    while channels % groups:
        groups -= 1
    return nn.GroupNorm(groups, channels)


class Block(nn.Module):
    """Inverted bottleneck: widen, look around in each channel, weigh the channels, narrow."""

    def __init__(self, expand: int, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide, squeezed = expand * inputs, max(1, inputs // SQUEEZE)
        widen = [nn.Conv2d(inputs, wide, 1, bias=False), norm(wide), nn.SiLU()] if expand > 1 else []
        around = nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False)
        self.wide = nn.Sequential(*widen, around, norm(wide), nn.SiLU())
        self.squeeze, self.excite = nn.Conv2d(wide, squeezed, 1), nn.Conv2d(squeezed, wide, 1)
        self.narrow = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), norm(outputs))
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x_RCHW: Tensor) -> Tensor:
        wide = self.wide(x_RCHW)
        weight = torch.sigmoid(self.excite(F.silu(self.squeeze(wide.mean((2, 3), keepdim=True)))))
        out = self.narrow(wide * weight)
        return x_RCHW + out if self.skips else out


class EfficientNet(nn.Module):
    """Pictures of any size -> features. Two channels that hold each pixel's place are added to a picture.

    They also keep a group norm of an empty page from dividing by next to nothing.
    """

    def __init__(self, channels: int, width: int, factor: float = 1.0, depth: float = 1.0) -> None:
        """
        Args:
            channels: C of the picture.
            width: Features.
            factor: On B0's channels, at least 0.1.
            depth: On its blocks of a stage, of which one is left at least.

        Raises:
            ValueError: A factor out of range.
        """
        super().__init__()
        if not 0.1 <= factor <= 4 or not 0 < depth <= 4:
            raise ValueError(f"factor={factor:g}, depth={depth:g}: give 0.1 to 4, and up to 4.")

        def scaled(count: int) -> int:
            return max(8, round(count * factor / 8) * 8)

        inputs = scaled(STEM)
        layers: list[nn.Module] = [nn.Conv2d(channels + 2, inputs, 3, 2, 1, bias=False), norm(inputs), nn.SiLU()]
        for expand, outputs, kernel, stride, count in (*STAGES, LAST):
            for number in range(max(1, round(count * depth))):
                layers.append(Block(expand, inputs, scaled(outputs), kernel, stride if number == 0 else 1))
                inputs = scaled(outputs)
        head = scaled(HEAD)
        layers += [nn.Conv2d(inputs, head, 1, bias=False), norm(head), nn.SiLU()]
        self.layers = nn.Sequential(*layers)
        self.linear = nn.Linear(head * KEPT**2, width)

    def forward(self, x_RCHW: Tensor) -> Tensor:
        """(R, C, H, W) floats in 0..1 -> (R, width)."""
        rows, _, height, width = x_RCHW.shape
        down = torch.linspace(-1, 1, height, device=x_RCHW.device).view(1, 1, -1, 1).expand(rows, 1, height, width)
        right = torch.linspace(-1, 1, width, device=x_RCHW.device).expand(rows, 1, height, width)
        x_RCHW = torch.cat([x_RCHW, down, right], 1).contiguous(memory_format=torch.channels_last)
        return self.linear(F.adaptive_avg_pool2d(self.layers(x_RCHW), KEPT).flatten(1))
