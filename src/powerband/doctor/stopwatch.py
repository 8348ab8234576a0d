"""Stopwatch: times one call on a device, including work that a GPU executes asynchronously."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def seconds_per_call(
    call: Callable[[], Any], device: torch.device, budget_s: float = 0.2, max_rounds: int = 200
) -> float:
    """Returns the median seconds per call. The first call warms up and is not counted.

    Calls shorter than 2 ms are timed in groups, because timing a single call on a GPU would measure its launch.

    Args:
        call: Function to time.
        device: Device on which the function works; it is synchronised before each reading of the clock.
        budget_s: Seconds for all rounds. A call that takes longer than this is timed once.
        max_rounds: Largest number of rounds behind the median.
    """
    call()
    synchronize(device)
    started = time.perf_counter()
    call()
    synchronize(device)
    first_s = max(time.perf_counter() - started, 1e-7)
    if first_s > budget_s:
        return first_s
    calls_per_round = max(1, min(100, int(2e-3 / first_s)))
    rounds = max(3, min(max_rounds, int(budget_s / (first_s * calls_per_round))))
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(calls_per_round):
            call()
        synchronize(device)
        times.append((time.perf_counter() - started) / calls_per_round)
    return sorted(times)[len(times) // 2]


def synchronize(device: torch.device) -> None:
    """Waits until a CUDA device has finished all queued work; does nothing for the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
