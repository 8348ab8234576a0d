"""PatchEncoder: encodes images as tokens of their patches, by convolutions that are trained with the policy.

It needs no pretrained weights: the coordinates of each pixel are inputs, and the norms need no batch statistics.
Suffixes: B images, C channels, H, W pixels, P patches, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.recipes.libero.nets.image_jitter import jitter_images

PATCHES = (16, 32)
"""Supported sides of a patch in pixels."""
CHANNELS = 3 + 2
"""Three colours and the two coordinates of a pixel."""
GROUP = 8
"""Channels of a group of GroupNorm."""


def conv(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Builds a 3 x 3 convolution with GroupNorm and SiLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(outputs // GROUP, outputs), nn.SiLU()
    )


class PatchEncoder(nn.Module):
    """Encodes images whose sides are multiples of a patch as one token per patch, row by row.

    Attributes:
        width: Features per patch, D.
    """

    def __init__(self, width: int = 128, subsample: int = 1, patch: int = 16) -> None:
        """
        Args:
            width: Features per patch, a multiple of 64; the first layer has an eighth of it.
            subsample: 2 averages 2 x 2 pixels first, in place of the first and most expensive layer; 1 does not.
            patch: Side of a patch in pixels, 16 or 32.

        Raises:
            ConfigError: A size is not supported.
        """
        super().__init__()
        if width < 64 or width % 64 or subsample not in (1, 2) or patch not in PATCHES:
            raise ConfigError(
                f"net.width={width}, net.subsample={subsample}, net.patch={patch} is not supported. Write a net.width "
                f"that is a multiple of 64, net.subsample=1 or 2, and net.patch=16 or 32."
            )
        self.width, self.subsample, self.patch = width, subsample, patch
        sizes = [CHANNELS, width // 8, width // 4, width // 2, width, *[width] * (patch == 32)]
        if subsample == 2:
            del sizes[1]
        self.halve = nn.Sequential(*(conv(*pair, 2) for pair in zip(sizes, sizes[1:], strict=False)))
        self.around = nn.Sequential(conv(width, width, 1), conv(width, width, 1))
        self.out = nn.Linear(width, width)

    def patches(self, height: int, width: int) -> int:
        """Returns the number of patches of an image.

        Raises:
            ConfigError: A side of the image is not a multiple of the side of a patch.
        """
        if height % self.patch or width % self.patch or not height or not width:
            raise ConfigError(
                f"Images of {height} x {width} pixels are not supported: the sides must be multiples of {self.patch}, "
                f"the side of a patch (net.patch). Write another pixels=."
            )
        return height * width // self.patch**2

    def forward(self, images_BHWC: Tensor, draws: Tensor | None = None) -> Tensor:
        """Encodes images.

        Args:
            images_BHWC: Images (B images, H rows of pixels, W columns, 3) uint8.
            draws: Random parameters of `jitter_images` (B, NUM_JITTER_PARAMS); None does not change the images.

        Returns:
            Tokens (B, P patches, D features).
        """
        rows, height, width, _ = images_BHWC.shape
        count = self.patches(height, width)
        kind = images_BHWC.device.type
        # One copy, in the dtype of the products; interleaved colours are channels_last already.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.out.weight.dtype
        x_BCHW = images_BHWC.permute(0, 3, 1, 2).to(dtype, memory_format=torch.channels_last)
        if self.subsample > 1:
            x_BCHW = F.avg_pool2d(x_BCHW, self.subsample)
        if draws is not None:
            x_BCHW = jitter_images(x_BCHW.permute(0, 2, 3, 1), draws).permute(0, 3, 1, 2)
        height, width = x_BCHW.shape[2:]
        down = torch.linspace(-1, 1, height, device=x_BCHW.device, dtype=dtype).view(1, 1, -1, 1)
        right = torch.linspace(-1, 1, width, device=x_BCHW.device, dtype=dtype).view(1, 1, 1, -1)
        coordinates = [axis.expand(rows, 1, height, width) for axis in (down, right)]
        x_BCHW = torch.cat([x_BCHW / 127.5 - 1, *coordinates], 1).contiguous(memory_format=torch.channels_last)
        x_BCHW = self.halve(x_BCHW)
        x_BCHW = x_BCHW + self.around(x_BCHW)
        return self.out(x_BCHW.flatten(2).transpose(1, 2).reshape(rows, count, self.width))
