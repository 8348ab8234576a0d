"""Own cores: reserves cores for each training run, so that runs at the same time do not slow each other down."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from powerband.core.errors import ConfigError
from powerband.core.machine.device import cores


@contextlib.contextmanager
def pinned(own_cores: set[int]) -> Iterator[None]:
    """Context that pins this thread, and processes that it starts, to the cores `own_cores`; empty changes nothing."""
    before = os.sched_getaffinity(0) if own_cores else set()
    if own_cores:
        os.sched_setaffinity(0, own_cores)
    try:
        yield
    finally:
        if own_cores:
            os.sched_setaffinity(0, before)


def core_groups(parallel: int) -> list[set[int]]:
    """Divides the cores of this process into `parallel` sets of core numbers of equal size."""
    own = sorted(os.sched_getaffinity(0))
    each = len(own) // parallel
    return [set(own[index * each : (index + 1) * each]) for index in range(parallel)]


def check_parallel(parallel: int, threads: int) -> None:
    """Checks that the machine has cores for several trials (training runs) at the same time.

    Args:
        parallel: Number of trials at the same time.
        threads: Threads of each trial; 0 uses all cores.

    Raises:
        ConfigError: There are not enough cores.
    """
    available = cores()
    most = max(1, available // (threads or available))
    if parallel > most:
        raise ConfigError(
            f"parallel={parallel} is above {most}: {available} cores divided by threads={threads or available}. Trials "
            f"are timed, so each needs its own cores. Write parallel={most}, or fewer threads."
        )
