"""CPU time: use of the processor by this process and by the whole machine, as reported by the Linux kernel."""

from __future__ import annotations

import os
import resource
import threading
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CpuUse:
    """Processor use over a window; figures that the kernel does not report are None.

    Attributes:
        busy_cores: Mean number of busy cores of the machine, other processes included.
        queue_s: Seconds that threads of this process were ready to run and had no core, summed over threads.
        loop_queue_s: The same seconds for the thread of the training loop alone.
        preempted: Number of times that the kernel interrupted a running thread of this process.
    """

    busy_cores: float | None = None
    queue_s: float | None = None
    loop_queue_s: float | None = None
    preempted: int = 0


class CpuMeter:
    """Measures the processor use between its creation and `read`.

    The thread of the training loop must create it, because the time of that thread is reported separately.
    """

    def __init__(self) -> None:
        self._loop = threading.get_native_id()
        self._start = self._now()

    def read(self, wall_s: float) -> CpuUse:
        """Returns the processor use since the creation of this meter.

        Args:
            wall_s: Seconds since the creation of this meter.
        """
        (busy, queues, preempted), (busy_then, queues_then, preempted_then) = self._now(), self._start
        waited = {task: ns - queues_then.get(task, 0) for task, ns in queues.items()}
        return CpuUse(
            None if busy is None or busy_then is None else (busy - busy_then) / max(wall_s, 1e-9),
            sum(waited.values()) * 1e-9 if waited else None,
            waited[self._loop] * 1e-9 if self._loop in waited else None,
            preempted - preempted_then,
        )

    def _now(self) -> tuple[float | None, dict[int, int], int]:
        queues = {}
        for task in Path("/proc/self/task").glob("*/schedstat"):
            try:
                queues[int(task.parent.name)] = int(task.read_text().split()[1])
            except (OSError, ValueError, IndexError):
                continue  # the thread ended, or this kernel does not keep scheduling statistics
        return _machine_busy_s(), queues, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _machine_busy_s() -> float | None:
    """Returns the busy seconds of all cores since the machine started, without idle time and disk waits.

    Returns None if the kernel does not report them.
    """
    try:
        values = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        ticks = [int(value) for value in values[:8]]
    except (OSError, ValueError):
        return None
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
