"""Flops: floating-point operations of one update, counted by torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

UNCOUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
    ),
}
"""Fused attention on a CPU, which torch's counter takes for nothing."""


def counted(update: Callable[[], object]) -> int:
    """Floating-point operations of one call: matrix products, convolutions, fused attention; forward and backward."""
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        update()
    return counter.get_total_flops()
