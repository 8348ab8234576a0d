"""Counts the floating-point operations of one update with PyTorch's counter."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
    ),
}
"""Fused attention on a CPU, which PyTorch's counter counts as zero operations."""


def count_flops(update: Callable[[], object]) -> int:
    """Counts the operations of one call: matrix products, convolutions and fused attention, forward and backward."""
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        update()
    return counter.get_total_flops()
