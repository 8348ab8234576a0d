"""Own cores: reserves cores for each training run, so that runs at the same time do not slow each other down."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.machine.device import cores, device_names


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


def check_parallel(parallel: int, settings: RunConfig) -> None:
    """Checks that several trials (training runs) at the same time do not slow each other down.

    Args:
        parallel: Number of trials at the same time.
        settings: Settings of the run. With threads=0, each trial uses all cores.

    Raises:
        ConfigError: There are not enough cores, or the trials would share a GPU.
    """
    if parallel > 1 and (devices := device_names(settings)) != ["cpu"]:
        raise ConfigError(
            f"parallel={parallel} does not work on a GPU: all trials would share {', '.join(devices)}, and trials are "
            f"timed. Write parallel=1, or gpus=none. Searches on other GPUs can join the study with storage=."
        )
    available, threads = cores(), settings.threads
    most = max(1, available // (threads or available))
    if parallel > most:
        raise ConfigError(
            f"parallel={parallel} is above {most}: {available} cores divided by threads={threads or available}. Trials "
            f"are timed, so each needs its own cores. Write parallel={most}, or fewer threads."
        )
