"""Attention: computes scaled dot-product attention. Shapes: R rows, H heads, N queries, L keys, D width of a head."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(q_RHND: Tensor, k_RHLD: Tensor, v_RHLD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Computes scaled dot-product attention for R rows, H heads, N queries, L keys and D entries of a head.

    Args:
        q_RHND: Queries (R, H, N, D).
        k_RHLD: Keys (R, H, L, D).
        v_RHLD: Values (R, H, L, D).
        mask: Bools that broadcast to (R, H, N, L), True for keys that a query may use; None allows all keys.

    Returns:
        Weighted values (R, H, N, D).

    In bfloat16 on a CPU, explicit products replace the fused attention of PyTorch: an update of the trajectory encoder
    takes 0.36 s instead of 1.05 s. In float32 the fused attention takes 0.29 s instead of 0.36 s
    (`benchmarks/updates/attention.py`).
    """
    if q_RHND.device.type != "cpu" or _product_type(q_RHND) == torch.float32:
        return F.scaled_dot_product_attention(q_RHND, k_RHLD, v_RHLD, attn_mask=mask)
    return explicit_attention(q_RHND, k_RHLD, v_RHLD, mask)


def explicit_attention(q_RHND: Tensor, k_RHLD: Tensor, v_RHLD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Computes the same as `attend` by explicit matrix products, with a softmax in float32 or wider."""
    score = (q_RHND * q_RHND.shape[-1] ** -0.5) @ k_RHLD.transpose(-1, -2)
    if mask is not None:
        score = score.masked_fill(~mask, -math.inf)
    wide = torch.promote_types(score.dtype, torch.float32)
    return torch.softmax(score, -1, dtype=wide).to(v_RHLD.dtype) @ v_RHLD


def _product_type(x: Tensor) -> torch.dtype:
    """Returns the dtype of products of `x`: that of autocast; or that of `x` without autocast, or if it is float64."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype
