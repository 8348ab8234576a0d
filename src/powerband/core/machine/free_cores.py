"""FreeCores: measures how many CPU cores of this process have nothing to do."""

from __future__ import annotations

import os
import time
from pathlib import Path

from powerband.core.machine.device import cores
from powerband.core.machine.utilisation import TICKS_PER_S, process_tree, process_usage

IDLE_COLUMNS = (3, 4)
"""Places of idle time and of waiting for disks in a line of ``/proc/stat``."""


class FreeCores:
    """Measures the free cores on average since the last call of `read`, or since the start.

    A core is free if neither this process with its children nor another process of the machine computes on it. The
    quota of a container limits the cores of this process.
    """

    def __init__(self) -> None:
        self._at, self._idle_s, self._own = time.perf_counter(), _idle_s(), _own()

    def read(self) -> float:
        """Returns the number of free cores, with fractions; 0 without ``/proc``."""
        before = self._at, self._idle_s, self._own
        self._at, self._idle_s, self._own = time.perf_counter(), _idle_s(), _own()
        seconds = self._at - before[0]
        if seconds <= 0 or self._idle_s is None or before[1] is None:
            return 0.0
        # The seconds of a child that has ended are unknown, so they count for neither side.
        own_s = sum(cpu_s - before[2].get(pid, 0.0) for pid, cpu_s in self._own.items())
        within_quota = cores() - own_s / seconds
        return max(0.0, min(within_quota, (self._idle_s - before[1]) / seconds))


def _idle_s() -> float | None:
    """Idle seconds of the cores that this process may use, summed; None without ``/proc``."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    own = os.sched_getaffinity(0)
    columns = [line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit()]
    rows = [row[1:] for row in columns if int(row[0][3:]) in own]
    return sum(int(row[column]) for row in rows for column in IDLE_COLUMNS) / TICKS_PER_S


def _own() -> dict[int, float]:
    """CPU seconds of this process and of each of its children, by process id."""
    return {pid: process_usage([pid])[0] for pid in process_tree(os.getpid())}
