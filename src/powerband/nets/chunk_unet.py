"""A U-Net over the steps of an action chunk, conditioned on diffusion time and observation. Suffixes: B, C channels, T.

Source: Janner et al. 2022 and Chi et al. 2023, "Diffusion Policy", section on the convolutional network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

GROUPS = 8
KERNEL = 5


class TimeCode(nn.Module):
    """Diffusion time as sines, then two layers. Source: Vaswani et al. 2017; Ho et al. 2020."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width))

    def forward(self, time_B: Tensor) -> Tensor:
        """(B,) times 0..999 -> (B, width)."""
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=time_B.device) * (-math.log(10_000) / (half - 1)))
        angle = time_B.float().unsqueeze(1) * rates
        return self.layers(torch.cat([angle.sin(), angle.cos()], 1))


class ConvBlock(nn.Sequential):
    """Convolution over the steps, group norm, Mish."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(
            nn.Conv1d(inputs, outputs, KERNEL, padding=KERNEL // 2), nn.GroupNorm(GROUPS, outputs), nn.Mish()
        )


class Residual(nn.Module):
    """Two blocks around a shift and a scale by what they are conditioned on."""

    def __init__(self, inputs: int, outputs: int, condition: int):
        super().__init__()
        self.first, self.second = ConvBlock(inputs, outputs), ConvBlock(outputs, outputs)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * outputs))
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x_BCT: Tensor, condition: Tensor) -> Tensor:
        """(B, inputs, T), (B, condition) -> (B, outputs, T)."""
        scale, shift = self.film(condition).unsqueeze(-1).chunk(2, 1)
        return self.second(self.first(x_BCT) * (1 + scale) + shift) + self.skip(x_BCT)


class ChunkUNet(nn.Module):
    """Noisy chunk -> what the scheduler asks for: its noise, or the chunk without it."""

    def __init__(self, action: int, condition: int, widths: Sequence[int] = (256, 512, 1024), time_width: int = 128):
        """
        Args:
            action: Numbers of one action.
            condition: Features of the observation.
            widths: Channels of each level; each but the last halves the steps.
            time_width: Features of the diffusion time.

        Raises:
            ValueError: Widths that the groups of the norms do not divide.
        """
        super().__init__()
        if not widths or any(width % GROUPS for width in widths):
            raise ValueError(f"widths={tuple(widths)}: give multiples of {GROUPS}.")
        self.time = TimeCode(time_width)
        given = condition + time_width
        pairs = list(zip([action, *widths[:-1]], widths, strict=True))
        self.down = nn.ModuleList(nn.ModuleList([Residual(i, o, given), Residual(o, o, given)]) for i, o in pairs)
        self.shrink = nn.ModuleList(nn.Conv1d(width, width, 3, 2, 1) for width in widths[:-1])
        self.middle = nn.ModuleList(Residual(widths[-1], widths[-1], given) for _ in range(2))
        back = list(reversed(list(zip(widths[:-1], widths[1:], strict=True))))
        self.grow = nn.ModuleList(nn.ConvTranspose1d(high, high, 4, 2, 1) for _, high in back)
        self.up = nn.ModuleList(
            nn.ModuleList([Residual(high + low, low, given), Residual(low, low, given)]) for low, high in back
        )
        self.out = nn.Sequential(ConvBlock(widths[0], widths[0]), nn.Conv1d(widths[0], action, 1))

    def forward(self, x_BTA: Tensor, time_B: Tensor, condition: Tensor) -> Tensor:
        """
        Args:
            x_BTA: (B, T, A) noisy chunks; T a multiple of 2 ** (levels - 1).
            time_B: (B,) diffusion times.
            condition: (B, F) features of the observation.

        Returns:
            (B, T, A) float32.
        """
        given = torch.cat([self.time(time_B).to(condition.dtype), condition], 1)
        x, kept = x_BTA.transpose(1, 2), []
        for level, (first, second) in enumerate(self.down):
            x = second(first(x, given), given)
            if level < len(self.shrink):
                kept.append(x)
                x = self.shrink[level](x)
        for block in self.middle:
            x = block(x, given)
        for grow, (first, second) in zip(self.grow, self.up, strict=True):
            x = second(first(torch.cat([grow(x), kept.pop()], 1), given), given)
        return self.out(x).transpose(1, 2).float()
