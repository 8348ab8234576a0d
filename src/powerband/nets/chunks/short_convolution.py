"""Convolutions over sequences of a few steps, as matrix products on a CPU.

PyTorch's convolutions on a CPU reach a small part of the rate of its matrix products when a sequence has few steps.
With 1,024 channels, 1,024 rows and one step, the product takes a thirtieth of the time. Both classes have the
parameters of the class of PyTorch that they extend, and equal it up to rounding.

Shapes: R rows, C input channels, O output channels, K taps of the kernel, S input steps, T output steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEWEST_ROWS = 8
"""With fewer rows, PyTorch's convolution is faster, because the product copies weights."""
FEW, SHORT, WIDE = 2, 4, 128
"""Up to `FEW` input steps, all steps of a sequence are one row of a matrix product. Up to `SHORT` steps, or twice as
many with `WIDE` input channels, windows of the sequence are. Longer sequences are left to PyTorch's convolution."""


class ShortConv1d(nn.Conv1d):
    """`torch.nn.Conv1d` with zero padding and without groups or dilation, which is faster on short sequences."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps x (R, C, S) to (R, O, T)."""
        (taps,), (stride,), steps = self.kernel_size, self.stride, x.shape[2]
        before = int(self.padding[0])
        longest = 2 * SHORT if self.in_channels >= WIDE else SHORT
        if x.device.type != "cpu" or len(x) < FEWEST_ROWS or steps > longest:
            return super().forward(x)
        if steps <= FEW:
            outputs = (steps + 2 * before - taps) // stride + 1
            return product_of_all_steps(x, self.weight, self.bias, outputs, lambda t, s: s - stride * t + before)
        windows = F.pad(x, (before, before)).unfold(2, taps, stride).transpose(1, 2)  # (R, T, C, K)
        return F.linear(windows.flatten(2), self.weight.flatten(1), self.bias).transpose(1, 2)


class ShortConvTranspose1d(nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` without groups, dilation or output padding, which is faster on short sequences."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Maps x (R, C, S) to (R, O, T); `output_size` is passed to PyTorch's convolution."""
        (taps,), (stride,), steps = self.kernel_size, self.stride, x.shape[2]
        before = int(self.padding[0])
        if x.device.type != "cpu" or len(x) < FEWEST_ROWS or steps > FEW or output_size is not None:
            return super().forward(x, output_size)
        outputs = (steps - 1) * stride - 2 * before + taps
        return product_of_all_steps(
            x, self.weight.transpose(0, 1), self.bias, outputs, lambda t, s: t - stride * s + before
        )


def product_of_all_steps(
    x: Tensor, weight_OCK: Tensor, bias: Tensor | None, outputs: int, tap: Callable[[int, int], int]
) -> Tensor:
    """Computes a convolution as one product of all steps with a matrix that holds the taps.

    Args:
        x: Input (R, C, S).
        weight_OCK: Weights (O, C, K).
        bias: Bias (O,); None adds nothing.
        outputs: T, number of output steps.
        tap: Function ``(t, s) -> k``: the tap that joins output step t to input step s. Outside 0..K-1 none does.

    Returns:
        Output (R, O, T).
    """
    channels, _, taps = weight_OCK.shape
    none = torch.zeros_like(weight_OCK[:, :, 0])
    per_output = [
        torch.stack([weight_OCK[:, :, k] if 0 <= (k := tap(t, s)) < taps else none for s in range(x.shape[2])], dim=-1)
        for t in range(outputs)
    ]  # T matrices (O, C, S)
    matrix = torch.stack(per_output, dim=1).flatten(2).flatten(0, 1)  # (O * T, C * S)
    result = F.linear(x.flatten(1), matrix, None if bias is None else bias.repeat_interleave(outputs))
    return result.view(len(x), channels, outputs)
