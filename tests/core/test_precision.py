"""Precision names, and what they refuse."""

import pytest
import torch

from powerband.core.precision import Precision


def test_bf16_runs_products_in_bf16_and_fp32_leaves_them():
    a = torch.randn(4, 4)
    with Precision("bf16").autocast():
        assert (a @ a).dtype == torch.bfloat16
    with Precision("fp32").autocast():
        assert (a @ a).dtype == torch.float32
    with Precision("bf16").autocast(rows=16):  # too few to pay on a CPU
        assert (a @ a).dtype == torch.float32
    assert Precision("bf16").scaler() is None


def test_fp16_needs_cuda():
    with pytest.raises(ValueError, match="bf16"):
        Precision("fp16", "cpu")


def test_unknown_name():
    with pytest.raises(ValueError, match="fp32, bf16, fp16"):
        Precision("fp8")
