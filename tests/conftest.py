"""Tests that measure seconds have the machine to themselves: they are marked `timed`, and run after all others.

The others run on two workers, with one thread of torch each. A worker takes whole files, in the order that this module
sets: the longest come first, so that no long file is left for one worker at the end.

MuJoCo decides what it renders with when it is imported, whichever test does so first: that is settled before all tests.
"""

from __future__ import annotations

import gc
import os
import signal
import warnings
from pathlib import Path

import pytest

from powerband.core.machine import rendering

HERE = Path(__file__).parent
TIMED = (
    "attach/test_update_probe.py",
    "bench/test_fault_peers.py",
    "core/machine/test_utilisation.py",
    "core/telemetry/test_phase_clock.py",
    "envs/workers/test_supervised.py",
    "tune/diagnose",
    "tune/measure/test_facts.py",
    "tune/measure/test_ledger.py",
    "tune/test_your_own_loop.py",
)
"""Folders and files under tests/ that measure. Single tests of other files are marked there."""
LONG = (
    "recipes/uav/env/test_mission.py",
    "recipes/snakes/env/test_env.py",
    "recipes/sketchnav/env/test_sensors.py",
    "recipes/metaworld/stages/test_stages.py",
    "recipes/libero/test_rdt_zero.py",
    "recipes/libero/test_two_ranks.py",
    "recipes/libero/test_rdt_shards.py",
    "distributed",
    "learning",
    "doctor/test_checkup.py",
    "recipes/libero/env/test_single.py",
    "recipes/libero/env/test_view.py",
    "recipes/libero/env/test_stepping.py",
    "recipes/libero",
    "contract",
    "recipes/sketchnav",
    "recipes",
    "faults",
    "loops",
    "tune",
    "algos",
)
"""Folders and files that take longest, in the order in which they start.

The first three compile the kernels of an environment each. Later files read these from numba's cache; two workers that
start files of one environment at the same time would compile its kernels twice.
"""


def pytest_configure() -> None:
    rendering.prepare()
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:  # as in a background job or under nohup; tests send them
            signal.signal(number, handler)
    if "PYTEST_XDIST_WORKER" in os.environ:  # before the first import of torch; a timed test has all cores
        os.environ["OMP_NUM_THREADS"] = "1"


def pytest_collection_finish() -> None:
    gc.freeze()  # each collection would look at the 600,000 objects of the modules again


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For timed tests alone, only files that have some are imported: to import all others takes ten seconds."""
    if config.option.markexpr not in ("timed", "not slow and timed") or not collection_path.name.startswith("test_"):
        return None
    timed = _first(collection_path, TIMED) < len(TIMED) or "pytest.mark.timed" in collection_path.read_text()
    return None if timed else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _first(item.path, TIMED) < len(TIMED):
            item.add_marker(pytest.mark.timed)
    items.sort(key=lambda item: _first(item.path, LONG))


def _first(path: Path, among: tuple[str, ...]) -> int:
    """Index of the first folder or file in `among` that holds the file of a test, and their number where none does."""
    if not path.is_relative_to(HERE):
        return len(among)
    where = path.relative_to(HERE)
    return next((number for number, each in enumerate(among) if where.is_relative_to(each)), len(among))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Restores the cores that the process may use, which numba compares with its number of threads in later tests."""
    cores = os.sched_getaffinity(0)
    result = yield
    if os.sched_getaffinity(0) != cores:
        os.sched_setaffinity(0, cores)
        warnings.warn(f"{item.nodeid} restricted the process to other cores; they are restored.", stacklevel=1)
    return result
