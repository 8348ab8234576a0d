"""Host: what the kernel says about the processor time of this process and of the machine. Linux; elsewhere nothing."""

from __future__ import annotations

import os
import resource
import threading
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HostUse:
    """Processor use over a window; None where the kernel does not say.

    Attributes:
        busy_cores: Cores that ran anything at all, of the whole machine.
        queue_s: Seconds that threads of this process were ready to run and had no core, summed over threads.
        loop_queue_s: The same of the loop's own thread alone.
        preempted: Times that a thread of this process was put off its core while it could have gone on.
    """

    busy_cores: float | None = None
    queue_s: float | None = None
    loop_queue_s: float | None = None
    preempted: int = 0


class HostMeter:
    """Measures from its creation to `read`."""

    def __init__(self) -> None:
        self._loop = threading.get_native_id()
        self._start = self._now()

    def read(self, wall_s: float) -> HostUse:
        """Use since the creation, `wall_s` seconds ago."""
        (busy, queues, preempted), (busy_then, queues_then, preempted_then) = self._now(), self._start
        waited = {task: ns - queues_then.get(task, 0) for task, ns in queues.items()}
        return HostUse(
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
                continue  # the thread has ended, or this kernel keeps no such figures
        return _machine_busy_s(), queues, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _machine_busy_s() -> float | None:
    """Processor seconds of everything since the machine started, idle time and waiting for disks left out."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        ticks = [int(word) for word in words[:8]]
    except (OSError, ValueError):
        return None
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
