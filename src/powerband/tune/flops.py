"""Flops: floating-point operations of one update, counted by torch, and the peak that this device shows.

The peak is what one large matrix product reaches here in the run's precision and with its threads, not a figure of a
data sheet: on CPUs no data sheet has one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from powerband.doctor.precision import LARGE, TYPES, speed

LESS = {"cpu": (512, 512, 512)}
"""A smaller product where a large one would take most of a second."""


def counted(update: Callable[[], object]) -> int:
    """Floating-point operations of one call: matrix products and convolutions, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        update()
    return counter.get_total_flops()


def peak(device: torch.device, precision: str) -> float:
    """Operations a second of a large matrix product in `precision`."""
    kind = TYPES["tf32" if precision == "fp32" and device.type == "cuda" else precision]
    return 1e9 * speed(LESS.get(device.type, LARGE[device.type]), kind, device)
