"""Attention. Suffixes: R rows, H heads, N queries, L keys, D width of a head."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(q_RHND: Tensor, k_RHLD: Tensor, v_RHLD: Tensor, there: Tensor | None = None) -> Tensor:
    """Attention (R, H, N, D); `there`, broadcast to (R, H, N, L), is True where there is something to look at.

    On a CPU the products are written out in bfloat16: the gradients of torch's fused attention took a third of an
    update of a small policy, now a thirtieth; an update of the trajectory encoder took 1.05 s, now 0.36. In float32 the
    fused one is the faster on a CPU too: 0.29 s instead of 0.36 (`benchmarks/attention.py`).
    """
    if q_RHND.device.type != "cpu" or _product_type(q_RHND) == torch.float32:
        return F.scaled_dot_product_attention(q_RHND, k_RHLD, v_RHLD, attn_mask=there)
    return explicit_attention(q_RHND, k_RHLD, v_RHLD, there)


def explicit_attention(q_RHND: Tensor, k_RHLD: Tensor, v_RHLD: Tensor, there: Tensor | None = None) -> Tensor:
    """`attend` in single products, with a softmax in float32 at least."""
    score = (q_RHND * q_RHND.shape[-1] ** -0.5) @ k_RHLD.transpose(-1, -2)
    if there is not None:
        score = score.masked_fill(~there, -math.inf)
    wide = torch.promote_types(score.dtype, torch.float32)
    return torch.softmax(score, -1, dtype=wide).to(v_RHLD.dtype) @ v_RHLD


def _product_type(x: Tensor) -> torch.dtype:
    """What products of `x` are computed in: autocast's type where it is on, which leaves float64 as it is."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype
