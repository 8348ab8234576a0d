"""ChunkUNet: a one-dimensional U-Net over action chunks, conditioned on the diffusion step and the observation.

Source: Chi et al. 2023, section 3 and appendix A ("Diffusion Policy"): FiLM of scale and shift in each residual block.
Shapes: R rows, T actions of a chunk, A numbers per action, C channels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.nets.chunks.short_convolution import ShortConv1d, ShortConvTranspose1d

KERNEL, GROUPS = 5, 8
TIME_WIDTH = 128
"""Number of features that represent the diffusion step."""


class StepEmbedding(nn.Module):
    """Sinusoidal embedding of the diffusion step, with two linear layers. Source: Vaswani et al. 2017, section 3.5."""

    rate: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        rate = torch.exp(torch.arange(width // 2) * (-math.log(10_000) / (width // 2 - 1)))
        self.register_buffer("rate", rate, persistent=False)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width))

    def forward(self, step: Tensor) -> Tensor:
        """Maps the diffusion steps (R,) of R rows to features (R, width)."""
        angle = step.float().unsqueeze(1) * self.rate
        return self.layers(torch.cat([angle.sin(), angle.cos()], 1))


def conv_block(inputs: int, outputs: int) -> nn.Sequential:
    """Builds a convolution over the actions of a chunk, followed by a group norm and Mish.

    Args:
        inputs: Input channels.
        outputs: Output channels.
    """
    return nn.Sequential(
        ShortConv1d(inputs, outputs, KERNEL, padding=KERNEL // 2), nn.GroupNorm(GROUPS, outputs), nn.Mish()
    )


class Residual(nn.Module):
    """Residual block of two convolutions. Between them, each channel is scaled and shifted as a condition decides.

    Args:
        inputs: Input channels.
        outputs: Output channels.
        condition: Width of the condition, a vector from which scale and shift are computed.
    """

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        self.first, self.second = conv_block(inputs, outputs), conv_block(outputs, outputs)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * outputs))
        self.skip = ShortConv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x_RCT: Tensor, condition: Tensor) -> Tensor:
        """Maps x (R rows, inputs, T actions of a chunk) to (R, outputs, T), given conditions (R, condition)."""
        scale, shift = self.film(condition).unsqueeze(-1).chunk(2, 1)
        return self.second((1 + scale) * self.first(x_RCT) + shift) + self.skip(x_RCT)


class ChunkUNet(nn.Module):
    """U-Net that predicts the noise (or the clean chunk) from a noisy chunk, a sequence of T actions.

    Shapes: R rows, T actions of a chunk, A numbers per action.
    """

    def __init__(self, actions: int, condition: int, widths: tuple[int, ...]) -> None:
        """
        Args:
            actions: A, numbers per action (not the number of actions).
            condition: Width of the encoded observation.
            widths: Channels of each level; each level after the first halves the length of the chunk.

        Raises:
            ConfigError: The number of groups of the group norms does not divide a width.
        """
        super().__init__()
        if not widths or any(width < GROUPS or width % GROUPS for width in widths):
            raise ConfigError(
                f"chunks.unet={widths}: channels must be multiples of {GROUPS}. Write chunks.unet=256,512,1024."
            )
        self.step = StepEmbedding(TIME_WIDTH)
        features = TIME_WIDTH + condition

        def level(inputs: int, outputs: int) -> nn.ModuleList:
            return nn.ModuleList([Residual(inputs, outputs, features), Residual(outputs, outputs, features)])

        self.down = nn.ModuleList(level(*sizes) for sizes in zip((actions, *widths), widths, strict=False))
        self.shorter = nn.ModuleList(ShortConv1d(width, width, 3, 2, 1) for width in widths[:-1])
        self.middle = level(widths[-1], widths[-1])
        upward = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.longer = nn.ModuleList(ShortConvTranspose1d(low, low, 4, 2, 1) for low, _ in upward)
        self.up = nn.ModuleList(level(low + high, high) for low, high in upward)
        self.out = nn.Sequential(conv_block(widths[0], widths[0]), nn.Conv1d(widths[0], actions, 1))

    def forward(self, x_RTA: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        """Predicts the noise or the clean chunk.

        Args:
            x_RTA: Noisy chunks (R rows, T actions of a chunk, A numbers per action). T is divisible by 2 once for each
                level after the first.
            step: Diffusion steps (R,) int64.
            condition: Encoded observations (R, condition).

        Returns:
            Prediction (R, T, A) float32.
        """
        condition = torch.cat([self.step(step), condition], 1)
        x, skips = x_RTA.transpose(1, 2), list[Tensor]()
        for number, blocks in enumerate(self.down):
            assert isinstance(blocks, nn.ModuleList)
            for block in blocks:
                x = block(x, condition)
            if number < len(self.shorter):
                skips.append(x)
                x = self.shorter[number](x)
        for block in self.middle:
            x = block(x, condition)
        for longer, blocks in zip(self.longer, self.up, strict=True):
            assert isinstance(blocks, nn.ModuleList)
            x = torch.cat([longer(x), skips.pop()], 1)
            for block in blocks:
                x = block(x, condition)
        return self.out(x).transpose(1, 2).float()
