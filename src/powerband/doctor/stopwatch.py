"""Stopwatch: the seconds of one call, on a device that may work behind our back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def seconds_a_call(call: Callable[[], Any], device: torch.device, budget_s: float = 0.2, most: int = 200) -> float:
    """Median seconds of a call, after one that does not count; of a call longer than `budget_s`, the seconds of one.

    Calls shorter than 2 ms are timed several at a time: on a GPU a launch alone would be timed otherwise.
    """
    call()
    wait(device)
    started = time.perf_counter()
    call()
    wait(device)
    once = max(time.perf_counter() - started, 1e-7)
    if once > budget_s:
        return once
    together = max(1, min(100, int(2e-3 / once)))
    rounds = max(3, min(most, int(budget_s / (once * together))))
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(together):
            call()
        wait(device)
        times.append((time.perf_counter() - started) / together)
    return sorted(times)[len(times) // 2]


def wait(device: torch.device) -> None:
    """Waits until `device` has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
