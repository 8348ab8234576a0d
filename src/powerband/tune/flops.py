"""Flops: floating-point operations of one update, counted by torch, and the peak that this device shows.

The peak is what one large matrix product reaches here in the run's precision and with its threads, not a figure of a
data sheet: on CPUs no data sheet has one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

SIZE = {"cpu": 512, "cuda": 8192}
"""Rows, inner size and columns of the large product."""
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TRIALS = 6
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


def peak(device: torch.device, precision: str) -> float:
    """Operations a second of a large matrix product in `precision`; the best of some, the first of which warms up."""
    size, seconds = SIZE[device.type], float("inf")
    left, right = (torch.randn(size, size, device=device).to(TYPES[precision]) for _ in range(2))
    into = torch.empty_like(left)
    for _ in range(TRIALS):
        start = time.perf_counter()
        torch.mm(left, right, out=into)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = min(seconds, time.perf_counter() - start)
    return 2 * size**3 / seconds
