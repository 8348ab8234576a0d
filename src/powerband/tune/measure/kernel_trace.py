"""KernelTrace: measures how long the GPU runs kernels in each account (category of time) of a training loop."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from powerband.core.optim.torch_private import kernel_intervals_ns
from powerband.core.telemetry.phase_clock import PhaseClock, PhaseTimes
from powerband.tune.measure.ledger import ACCOUNT_ALIASES, Ledger

TRACE_S = 0.5
"""Least seconds of a trace, if an iteration is shorter."""
WALL = "wall"
"""Key of the share of the wall time."""
MAX_KERNELS_OUTSIDE = 0.5
"""If more of the kernel time than this lies outside of the trace, the clocks of host and profiler disagree."""


class KernelTrace:
    """Records the kernels of some iterations, and the spans of a phase clock during which they run.

    The profiler slows down the launches, so only the times of the kernels are used; the rate of the loop comes from an
    earlier window without the profiler. The driver's "utilisation" is not used, because it counts a kernel that waits
    for another rank as busy.

    Args:
        clock: Phase clock of the loop, outside of all spans.
        iterations: Number of iterations of the loop to record.
    """

    def __init__(self, clock: PhaseClock, iterations: int) -> None:
        self._clock, self._iterations, self._left = clock, iterations, iterations
        torch.cuda.synchronize()
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True)
        self._profiler.start()
        self._switches = clock.record_switches()

    def iteration_ends(self) -> bool:
        """Counts an iteration, and returns whether it was the last one of the trace."""
        self._left -= 1
        return not self._left

    def shares(self, window: PhaseTimes, iterations: int) -> dict[str, float] | None:
        """Ends the trace.

        Args:
            window: Times of an earlier window of the same loop without the profiler.
            iterations: Number of its iterations.

        Returns:
            Account -> share of its time in the window in which the device ran a kernel or a copy, 0 to 1, and `WALL` ->
            that of the wall time. None if the profiler recorded no kernels, or times that do not fit the spans.
        """
        torch.cuda.synchronize()
        self._clock.stop_switches()
        self._profiler.stop()
        recorded = busy_s(kernel_intervals_ns(self._profiler), self._switches)
        if recorded is None:
            return None
        busy: dict[str, float] = {}
        for name, seconds in recorded.items():
            account = ACCOUNT_ALIASES.get(name, name)
            busy[account] = busy.get(account, 0.0) + seconds * iterations / self._iterations
        spent = {**Ledger.from_phases(window).seconds, WALL: window.wall_s}
        busy[WALL] = sum(busy.values())
        return {name: min(1.0, busy.get(name, 0.0) / seconds) for name, seconds in spent.items() if seconds}


def busy_s(kernels: Sequence[tuple[int, int]], switches: Sequence[tuple[int, str]]) -> dict[str, float] | None:
    """Assigns the time of kernels to the accounts (categories of time) of the loop.

    Args:
        kernels: First and last nanosecond of each kernel; intervals may overlap.
        switches: Instants in nanoseconds of the same clock at which the loop enters an account, in order. The last
            one ends the trace.

    Returns:
        Account -> seconds in which at least one kernel ran; None if there are no kernels, or if most of their time lies
        outside of the trace.
    """
    seconds: dict[str, float] = {}
    outside, number = 0, 0
    begin, end = switches[0][0], switches[-1][0]
    for first, last in _union(kernels):
        outside += max(0, min(last, begin) - first) + max(0, last - max(first, end))
        while number + 2 < len(switches) and switches[number + 1][0] <= first:
            number += 1
        index = number
        while index + 1 < len(switches) and switches[index][0] < last:
            inside = min(last, switches[index + 1][0]) - max(first, switches[index][0])
            if inside > 0:
                name = switches[index][1]
                seconds[name] = seconds.get(name, 0.0) + inside * 1e-9
            index += 1
    total = sum(seconds.values()) + outside * 1e-9
    return seconds if total and outside * 1e-9 <= MAX_KERNELS_OUTSIDE * total else None


def _union(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns disjoint intervals in order that cover the same time."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined
