"""Attention: the explicit and the fused version agree, and each is used if it is faster."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from powerband.nets import attention
from powerband.nets.attention import attend, explicit_attention


def inputs(masked: bool):
    """Queries, keys and values in float64, and a mask with at least one valid key per row."""
    source = torch.Generator().manual_seed(0)
    parts = [torch.randn(3, 2, 5, 4, dtype=torch.float64, generator=source) for _ in range(3)]
    mask = torch.rand(3, 1, 1, 5, generator=source) < 0.7 if masked else None
    if masked:
        mask[..., 0] = True
    return parts, mask


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype, near", [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("function", [attend, explicit_attention])
def test_values_and_gradients_are_those_of_torch(function, dtype, near, masked):
    parts, mask = inputs(masked)
    results = []
    for of, own in ((function, dtype), (F.scaled_dot_product_attention, torch.float64)):
        leaves = [part.to(own).requires_grad_() for part in parts]
        out = of(*leaves, mask)
        out.sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    for mine, theirs in zip(*results, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), theirs, rtol=near, atol=near)


@pytest.mark.parametrize(
    "dtype, autocast, fused",
    [
        (torch.float32, None, True),
        (torch.bfloat16, None, False),
        (torch.float64, None, False),
        (torch.float32, torch.bfloat16, False),
        (torch.bfloat16, torch.bfloat16, False),
        (torch.float64, torch.bfloat16, False),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_cpu_float32_attention_is_fused(dtype, autocast, fused, compiled, monkeypatch):
    calls, parts = [], [part.to(dtype) for part in inputs(False)[0]]

    def counted(*given, **options):
        calls.append(options)
        return torch.zeros_like(given[0])

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", counted)
    with torch.autocast("cpu", autocast) if autocast else nullcontext():
        function = torch.compile(attend, backend="eager", fullgraph=True) if compiled else attend
        out = function(*parts)
    assert (len(calls) == 1) == fused
    assert out.dtype == (torch.bfloat16 if autocast and dtype != torch.float64 else dtype)
