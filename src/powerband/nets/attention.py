"""Attention. Suffixes: R rows, H heads, N queries, L keys, D width of a head."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(q_RHND: Tensor, k_RHLD: Tensor, v_RHLD: Tensor, there: Tensor | None = None) -> Tensor:
    """Attention (R, H, N, D); `there`, broadcast to (R, H, N, L), is True where there is something to look at.

    On a CPU the products are written out: the gradients of torch's fused attention took a third of an update of a small
    policy, now a thirtieth; in bfloat16 an update of the trajectory encoder took 1.05 s, now 0.36, while in float32 the
    fused one is the faster by a fifth (`benchmarks/attention.py`).
    """
    if q_RHND.device.type != "cpu":
        return F.scaled_dot_product_attention(q_RHND, k_RHLD, v_RHLD, attn_mask=there)
    score = (q_RHND * q_RHND.shape[-1] ** -0.5) @ k_RHLD.transpose(-1, -2)
    if there is not None:
        score = score.masked_fill(~there, -math.inf)
    wide = torch.promote_types(score.dtype, torch.float32)
    return torch.softmax(score, -1, dtype=wide).to(v_RHLD.dtype) @ v_RHLD
