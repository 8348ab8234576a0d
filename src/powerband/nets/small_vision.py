"""SmallVision: pictures as tokens of their patches, by convolutions that are trained with the policy.

It makes do without pretrained weights: each pixel knows where it is, and norms need no statistics over a batch.
Suffixes: B pictures, C channels, H, W pixels, P patches, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.nets.jitter import jittered

PATCHES = (16, 32)
"""Pixels along a patch that there are."""
CHANNELS = 3 + 2
"""Colours, and how far down and right a pixel is."""
GROUP = 8
"""Channels of a group."""


def conv(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Convolution of 3 x 3, norm, SiLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(outputs // GROUP, outputs), nn.SiLU()
    )


class SmallVision(nn.Module):
    """Pictures whose sides are multiples of a patch -> a token of each patch, row by row.

    Attributes:
        width: D.
    """

    def __init__(self, width: int = 128, subsample: int = 1, patch: int = 16) -> None:
        """
        Args:
            width: D, a multiple of 64; the first layer has an eighth of it.
            subsample: 2 averages 2 x 2 pixels first, in place of the first and dearest layer; 1 does not.
            patch: Pixels along a patch, 16 or 32.

        Raises:
            ValueError: A width that does not divide, another subsample or patch.
        """
        super().__init__()
        if width < 64 or width % 64 or subsample not in (1, 2) or patch not in PATCHES:
            raise ValueError(
                f"width={width}, subsample={subsample}, patch={patch}: give a multiple of 64, 1 or 2, and 16 or 32."
            )
        self.width, self.subsample, self.patch = width, subsample, patch
        sizes = [CHANNELS, width // 8, width // 4, width // 2, width, *[width] * (patch == 32)]
        if subsample == 2:
            del sizes[1]
        self.halve = nn.Sequential(*(conv(*pair, 2) for pair in zip(sizes, sizes[1:], strict=False)))
        self.around = nn.Sequential(conv(width, width, 1), conv(width, width, 1))
        self.out = nn.Linear(width, width)

    def patches(self, height: int, width: int) -> int:
        """P of pictures of this size.

        Raises:
            ValueError: A side that a patch does not divide.
        """
        if height % self.patch or width % self.patch or not height or not width:
            raise ValueError(f"a picture of {height} x {width} pixels: give sides that are multiples of {self.patch}.")
        return height * width // self.patch**2

    def forward(self, pictures_BHWC: Tensor, draws: Tensor | None = None) -> Tensor:
        """(B, H, W, 3) uint8, and what `jittered` does to them (B, DRAWS) or None -> (B, P, D)."""
        rows, height, width, _ = pictures_BHWC.shape
        count = self.patches(height, width)
        kind = pictures_BHWC.device.type
        # One copy, in the type of the products; rows of pixels with their colours together are channels_last already.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.out.weight.dtype
        x_BCHW = pictures_BHWC.permute(0, 3, 1, 2).to(dtype, memory_format=torch.channels_last)
        if self.subsample > 1:
            x_BCHW = F.avg_pool2d(x_BCHW, self.subsample)
        if draws is not None:
            x_BCHW = jittered(x_BCHW.permute(0, 2, 3, 1), draws).permute(0, 3, 1, 2)
        height, width = x_BCHW.shape[2:]
        down = torch.linspace(-1, 1, height, device=x_BCHW.device, dtype=dtype).view(1, 1, -1, 1)
        right = torch.linspace(-1, 1, width, device=x_BCHW.device, dtype=dtype).view(1, 1, 1, -1)
        where = [axis.expand(rows, 1, height, width) for axis in (down, right)]
        x_BCHW = torch.cat([x_BCHW / 127.5 - 1, *where], 1).contiguous(memory_format=torch.channels_last)
        x_BCHW = self.halve(x_BCHW)
        x_BCHW = x_BCHW + self.around(x_BCHW)
        return self.out(x_BCHW.flatten(2).transpose(1, 2).reshape(rows, count, self.width))
