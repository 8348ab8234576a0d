"""Counts the floating-point operations of one update with PyTorch's counter."""

from __future__ import annotations

from collections.abc import Callable

from torch.utils.flop_counter import FlopCounterMode

from powerband.core.optim.torch_private import CPU_ATTENTION


def count_flops(update: Callable[[], object]) -> int:
    """Counts the operations of one call: matrix products, convolutions and fused attention, forward and backward."""
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        update()
    return counter.get_total_flops()
