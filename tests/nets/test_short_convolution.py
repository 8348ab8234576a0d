"""Convolutions of short sequences: they equal PyTorch's, outputs and gradients, in every branch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from powerband.nets.chunks.short_convolution import FEWEST_ROWS, WIDE, ShortConv1d, ShortConvTranspose1d


def outputs_and_gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    output = module(x)
    (output * torch.linspace(-1, 1, output.numel(), dtype=x.dtype).view_as(output)).sum().backward()
    assert x.grad is not None
    return [output.detach(), x.grad, *(each.grad for each in module.parameters() if each.grad is not None)]


def check_equal(own: nn.Module, torchs: nn.Module, inputs: int, rows: int, steps: int) -> None:
    own.load_state_dict(torchs.state_dict())
    x = torch.randn(rows, inputs, steps, dtype=torch.float64)
    pairs = list(zip(outputs_and_gradients(own, x), outputs_and_gradients(torchs, x), strict=True))
    assert len(pairs) >= 3
    for mine, theirs in pairs:
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("rows", [1, FEWEST_ROWS, 33])
@pytest.mark.parametrize("inputs", [3, WIDE])
@pytest.mark.parametrize(("taps", "stride", "padding"), [(5, 1, 2), (3, 2, 1), (1, 1, 0)])
def test_convolution_equals_that_of_torch(
    steps: int, rows: int, inputs: int, taps: int, stride: int, padding: int
) -> None:
    def build(kind: Callable[..., nn.Module]) -> nn.Module:
        return kind(inputs, 6, taps, stride=stride, padding=padding, dtype=torch.float64)

    check_equal(build(ShortConv1d), build(nn.Conv1d), inputs, rows, steps)


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, FEWEST_ROWS, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_transposed_convolution_equals_that_of_torch(steps: int, rows: int, bias: bool) -> None:
    def build(kind: Callable[..., nn.Module]) -> nn.Module:
        return kind(5, 6, 4, stride=2, padding=1, bias=bias, dtype=torch.float64)

    check_equal(build(ShortConvTranspose1d), build(nn.ConvTranspose1d), 5, rows, steps)
