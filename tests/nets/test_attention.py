"""Attention as it is written out for CPUs against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from powerband.nets.attention import attend


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype, near", [(torch.float64, 1e-12), (torch.bfloat16, 0.03)])
def test_values_and_gradients_are_those_of_torch(dtype, near, masked):
    source = torch.Generator().manual_seed(0)
    parts = [torch.randn(3, 2, 5, 4, dtype=torch.float64, generator=source) for _ in range(3)]
    there = torch.rand(3, 1, 1, 5, generator=source) < 0.7 if masked else None
    if masked:
        there[..., 0] = True
    results = []
    for function, own in ((attend, dtype), (F.scaled_dot_product_attention, torch.float64)):
        leaves = [part.to(own).requires_grad_() for part in parts]
        out = function(*leaves, there)
        out.sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    for mine, theirs in zip(*results, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), theirs, rtol=near, atol=near)
