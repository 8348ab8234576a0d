"""Launched ranks: the launcher of a machine watches the ranks that it starts."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from powerband.core.stalls.machines import Machines
from powerband.core.stalls.progress import SharedPages
from powerband.core.stalls.report import END_SIGNAL
from powerband.core.stalls.watch import OnStall, StallWatch
from powerband.core.stalls.watched_rank import COUNT_VARIABLE, PAGES_VARIABLE

STALLED = 128 + END_SIGNAL
"""Exit status of a run that a stall has ended."""
EXIT_S = 10.0
"""Seconds after the end of a stalled rank in which the launcher must end; a rank in a driver may not even die."""


@contextmanager
def watched_ranks(
    count: int, stall_s: float, on_stall: OnStall, endpoint: tuple[str, int] | None, restarts: bool = False
) -> Iterator[threading.Event]:
    """Context in which the ranks that this process starts are watched.

    Args:
        count: Number of ranks on this machine.
        stall_s: Seconds without progress that are a stall; 0 watches nothing.
        on_stall: What follows a stall: "end" or "warn".
        endpoint: Address and port at which the machines of the run meet; None for a run on one machine.
        restarts: True if ranks that have ended may be started again, so that the next ones are watched too.

    Yields:
        Event that is set when a stall has ended the ranks.
    """
    stalled, ended = threading.Event(), threading.Event()
    if not stall_s or sys.platform != "linux":
        yield stalled
        return
    pages = SharedPages(count)
    machines = None if endpoint is None else Machines(*endpoint, ended)
    watch = StallWatch(pages, stall_s, on_stall, machines, restarts)

    def watch_ranks() -> None:
        while watch.watch(ended.wait, stalled.set):
            if not restarts and not ended.wait(EXIT_S):
                os._exit(STALLED)
            watch.start_again()

    os.environ.update({PAGES_VARIABLE: pages.path, COUNT_VARIABLE: str(count)})
    thread = threading.Thread(target=watch_ranks, name="stall watch", daemon=True)
    thread.start()
    try:
        yield stalled
    finally:
        ended.set()
        thread.join()
        for variable in (PAGES_VARIABLE, COUNT_VARIABLE):
            os.environ.pop(variable, None)
        pages.close()
