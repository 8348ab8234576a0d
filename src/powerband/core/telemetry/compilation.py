"""Compilation: measures how long numba and torch.compile compile functions, which is preparation and no training.

Both compile a function at its first call, within the first iterations of a loop. numba stores the machine code on disk,
so that only the first run on a machine compiles. The clocks of a run leave this time out, so that a time limit, rates
and shares mean the same in every run.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from functools import cache

from powerband.core.optim.torch_private import listen_to_compilation
from powerband.core.telemetry.phase_clock import PhaseClock

EVENT = "numba:compile"


class _Compilation:
    """Total of the process, and the clock and thread of the present loop.

    Attributes:
        seconds: Seconds in which functions were compiled on the thread of a loop.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.clock: weakref.ref[PhaseClock] | None = None
        self.thread = self.depth = 0
        self.began = (0.0, 0.0, 0.0)

    def starts(self, *_: object) -> None:
        if threading.get_ident() != self.thread:
            return
        self.depth += 1
        if self.depth == 1:
            self.began = _now()

    def ends(self, *_: object) -> None:
        if threading.get_ident() != self.thread or not self.depth:
            return
        self.depth -= 1
        if self.depth:  # a function that another one calls
            return
        wall_s, cpu_s, thread_s = (now - began for now, began in zip(_now(), self.began, strict=True))
        self.seconds += wall_s
        clock = self.clock() if self.clock is not None else None
        if clock is not None:
            clock.exclude(wall_s, cpu_s, thread_s)


_compilation = _Compilation()


def exclude_compilation(clock: PhaseClock) -> None:
    """From now on, leaves compilation on this thread out of `clock` and of `running_time`.

    This replaces the clock of an earlier call. A compiler that the process has not imported by then is not observed.
    """
    _compilation.clock, _compilation.thread = weakref.ref(clock), threading.get_ident()
    _compilation.depth = 0
    if "numba" in sys.modules:
        _listen_to_numba()
    if "torch._dynamo" in sys.modules:  # which calls of torch.compile import
        _listen_to_dynamo()


def compiled_s() -> float:
    """Seconds of this process in which functions were compiled for a loop, see `exclude_compilation`."""
    return _compilation.seconds


def running_time() -> float:
    """Returns `time.perf_counter` without the seconds of `compiled_s`, to measure intervals of a training loop."""
    return time.perf_counter() - _compilation.seconds


def _now() -> tuple[float, float, float]:
    return time.perf_counter(), time.process_time(), time.thread_time()


@cache  # once per process
def _listen_to_numba() -> None:
    from numba.core import event

    class Listener(event.Listener):
        on_start, on_end = staticmethod(_compilation.starts), staticmethod(_compilation.ends)

    event.register(EVENT, Listener())


@cache  # once per process
def _listen_to_dynamo() -> None:
    listen_to_compilation(_compilation.starts, _compilation.ends)
