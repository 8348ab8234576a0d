"""Inverted bottlenecks with squeeze and excitation and group norm: a small EfficientNet for frames and sketches.

Source: Tan and Le 2019, "EfficientNet", table 1; group norm for batch norm as in Chi et al. 2023, "Diffusion Policy",
because an exponential average of weights does not go with running statistics.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

STAGES = (  # expansion, channels, blocks, stride, kernel
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
STEM, LAST = 32, 1280
GROUP = 8


def _rounded(channels: float) -> int:
    """The nearest multiple of eight, one at least."""
    return max(GROUP, int(channels / GROUP + 0.5) * GROUP)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // GROUP, channels)


class Squeeze(nn.Module):
    """Each channel weighed by what the means of all say. Source: Hu et al. 2018."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 1), nn.SiLU(), nn.Conv2d(width, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        return x * self.layers(x.mean((2, 3), keepdim=True))


class MBConv(nn.Module):
    """Expand, filter each channel, squeeze, project; with the input added where shapes allow."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, kernel: int):
        super().__init__()
        wide = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [nn.Conv2d(inputs, wide, 1, bias=False), _norm(wide), nn.SiLU()]
        layers += [
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False),
            _norm(wide),
            nn.SiLU(),
            Squeeze(wide, max(1, inputs // 4)),
            nn.Conv2d(wide, outputs, 1, bias=False),
            _norm(outputs),
        ]
        self.layers = nn.Sequential(*layers)
        self.added = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        return x + self.layers(x) if self.added else self.layers(x)


class FrameNet(nn.Module):
    """Pictures -> features."""

    def __init__(self, channels: int, width: int = 512, factor: float = 1.0):
        """
        Args:
            channels: C of the pictures (frames are stacked along it).
            width: Features.
            factor: On all channels; 1 is EfficientNet-B0.
        """
        super().__init__()
        now = _rounded(STEM * factor)
        layers: list[nn.Module] = [nn.Conv2d(channels, now, 3, 2, 1, bias=False), _norm(now), nn.SiLU()]
        for expansion, outputs, blocks, stride, kernel in STAGES:
            outputs = _rounded(outputs * factor)
            for number in range(blocks):
                layers.append(MBConv(now, outputs, expansion, stride if number == 0 else 1, kernel))
                now = outputs
        last = _rounded(LAST * factor)
        self.layers = nn.Sequential(*layers, nn.Conv2d(now, last, 1, bias=False), _norm(last), nn.SiLU())
        self.linear = nn.Linear(last, width)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, C, H, W) floats in 0..1 -> (B, width)."""
        return torch.relu(self.linear(self.layers(x_BCHW).mean((2, 3))))
