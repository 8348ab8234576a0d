"""Kernel probe: records which kernels a GPU runs during some iterations, and which part of the loop launched them.

The clock of the script shows where the host is. It does not show whether the device computes meanwhile, because
launches return at once. The profiler of torch records the kernels, and the calls that launched them or waited for them.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from typing import Any

from powerband_attach.profile.clock import clock

LEAST_UPDATES, LEAST_ENV_CALLS, SHORTEST_NS = 8, 8, 500_000_000
"""Fewest updates and calls of environments of a record, and its shortest time."""
LONGEST_NS = 4_000_000_000
"""Time after which fewer of them are enough."""
PARTS = {"env": "env", "env_wait": "env", "backward": "update", "optimizer": "update"}
"""Name of a span -> part of the loop to which it belongs."""
SYNCHRONISATIONS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
"""Calls of the driver in which the host waits for the device."""

Mark = tuple[int, int, str]
"""Start and end of a span in nanoseconds, and its part of the loop."""


class KernelProbe:
    """A record of the profiler that has begun. The thread that trains creates it outside of all spans."""

    def __init__(self) -> None:
        torch = sys.modules["torch"]
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints to the stderr of the script
        self._profiler = _new_profiler(torch)
        torch.cuda.synchronize()
        self._profiler.start()
        clock.fold()
        self._updates, self._env_steps = clock.updates, clock.env_steps
        self._unix_ns = time.time_ns() - perf_counter_ns()
        self._steps_envs = bool(clock.env_steps)
        self._spans = clock.kept = []
        self._began_ns = perf_counter_ns()

    def has_enough(self) -> bool:
        """Returns whether the record contains enough of the loop. The thread that trains calls it after an update."""
        passed_ns = perf_counter_ns() - self._began_ns
        if passed_ns >= LONGEST_NS:
            return True
        if passed_ns < SHORTEST_NS or clock.updates - self._updates < LEAST_UPDATES:
            return False
        clock.fold()
        calls = sum(name in ("env", "env_wait") for name, _, _ in list(self._spans))
        return calls >= LEAST_ENV_CALLS or not self._steps_envs

    def end(self) -> dict[str, Any]:
        """Ends the record and returns its figures.

        Returns:
            ``updates``, ``env_steps`` and ``wall_s`` of the record; ``busy_s``, in which at least one kernel or copy
            ran; ``kernels``, their number; ``launched_s``, those seconds by the part of the loop that launched the
            kernels, and ``copy``; ``syncs`` and ``sync_s``, the calls in which the host waited for the device, and
            their seconds.
        """
        ended_ns = perf_counter_ns()
        sys.modules["torch"].cuda.synchronize()
        self._profiler.stop()
        clock.fold()
        clock.kept = None
        figures = figures_of(
            self._profiler.profiler.kineto_results.events(),
            [(start, end, PARTS[name]) for name, start, end in self._spans if name in PARTS],
            (self._began_ns, ended_ns),
            self._unix_ns,
        )
        return {
            "updates": clock.updates - self._updates,
            "env_steps": clock.env_steps - self._env_steps,
            "wall_s": (ended_ns - self._began_ns) * 1e-9,
            **figures,
        }


def kernel_probe() -> KernelProbe | None:
    """Starts a record; None if the script itself profiles at present."""
    enabled = getattr(sys.modules["torch"]._C._autograd, "_profiler_enabled", None)
    return None if enabled is None or enabled() else KernelProbe()


def _new_profiler(torch: Any) -> Any:
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    try:
        return torch.profiler.profile(activities=kinds, acc_events=True)
    except TypeError:  # torch before 2.6, which does not warn without the argument
        return torch.profiler.profile(activities=kinds)


def figures_of(
    events: Iterable[Any], spans: Sequence[Mark], window_ns: tuple[int, int], unix_ns: int
) -> dict[str, Any]:
    """Returns the figures of the device in a finished record.

    Args:
        events: Events of the profiler (Kineto), with times of the Unix clock.
        spans: Spans of the loop, with times of the clock of the script.
        window_ns: Begin and end of the record, on the same clock. The probe itself waits for the device before and
            afterwards.
        unix_ns: Unix time minus the time of the clock of the script.
    """
    marks = sorted(spans)
    starts = [start for start, _, _ in marks]
    launched_ns: dict[int, int] = {}
    kernels: list[tuple[int, int, int, bool]] = []
    syncs = sync_ns = 0
    for event in events:
        if event.device_type().name == "CUDA":
            first, is_copy = event.start_ns(), event.name().startswith("Memcpy")
            kernels.append((first, first + event.duration_ns(), event.correlation_id(), is_copy))
            continue
        launched_ns[event.correlation_id()] = event.start_ns()
        inside = window_ns[0] <= event.start_ns() - unix_ns <= window_ns[1]
        if inside and event.name() in SYNCHRONISATIONS:
            syncs += 1
            sync_ns += event.duration_ns()
    busy_ns = _covered(sorted((first, last) for first, last, _, _ in kernels))
    by_part: dict[str, int] = {}
    for first, last, number, is_copy in kernels:
        part = "copy" if is_copy else part_of(launched_ns.get(number, first) - unix_ns, marks, starts)
        by_part[part] = by_part.get(part, 0) + last - first
    whole_ns = sum(by_part.values())  # kernels of several streams may run at the same time
    return {
        "busy_s": busy_ns * 1e-9,
        "kernels": len(kernels),
        "launched_s": {part: each * busy_ns / max(1, whole_ns) * 1e-9 for part, each in by_part.items()},
        "syncs": syncs,
        "sync_s": sync_ns * 1e-9,
    }


def part_of(at_ns: int, marks: Sequence[Mark], starts: Sequence[int]) -> str:
    """Returns the part of the loop at a time: ``env``, ``update`` or ``act``.

    Only the calls of environments, backward passes and optimiser steps have spans. What happens before the next call
    of an environment chooses its actions, and what happens before the next backward pass belongs to an update.

    Args:
        at_ns: The time.
        marks: Spans in order.
        starts: Their starts.
    """
    index = bisect_right(starts, at_ns)
    if index and at_ns <= marks[index - 1][1]:
        return marks[index - 1][2]
    following = marks[index][2] if index < len(marks) else "update"
    return "act" if following == "env" else following


def _covered(intervals: Sequence[tuple[int, int]]) -> int:
    """Returns the nanoseconds that sorted intervals cover together."""
    covered = until = 0
    for first, last in intervals:
        covered += max(0, last - max(first, until))
        until = max(until, last)
    return covered
