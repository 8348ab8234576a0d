"""Counts the floating-point operations of one update with PyTorch's counter."""

from __future__ import annotations

from collections.abc import Callable

from torch.utils.flop_counter import FlopCounterMode

from powerband.core.optim.torch_private import CPU_ATTENTION


def count_flops(update: Callable[[], object]) -> int:
    """Counts the floating-point operations of one call: matrix products, convolutions and fused attention.

    Args:
        update: Function to call once; the operations of its backward passes are counted too.

    Returns:
        Number of operations; a multiplication and an addition are two.
    """
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        update()
    return counter.get_total_flops()
