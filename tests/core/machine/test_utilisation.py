"""Utilisation: child processes count, and processes are identified by their start time."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from powerband.core.machine.utilisation import Utilisation, process_tree, process_usage
from powerband.core.run_folder import process_start_ticks

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="no /proc on this system")


def test_simulators_in_other_processes_are_counted() -> None:
    code = "import time\nprint('up', flush=True)\nwhile time.process_time() < 30: pass"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        utilisation = Utilisation()
        before, start = process_usage([child.pid])[0], time.perf_counter()
        time.sleep(0.5)
        metrics = utilisation.read()
        own = (process_usage([child.pid])[0] - before) / (time.perf_counter() - start)
        assert child.pid in process_tree(os.getpid()) and process_tree(child.pid) == [child.pid]
        assert own > 0.05 and metrics["perf/cpu_cores"] > 0.5 * own
        assert metrics["perf/memory_gib"] >= process_usage([child.pid])[1] / 2**30
    finally:
        child.kill()
        child.wait()
    assert process_tree(child.pid) == [] and process_usage([child.pid]) == (0.0, 0)


def test_an_ended_process_has_no_start_time_even_before_it_is_waited_for() -> None:
    assert process_start_ticks(os.getpid()) == process_start_ticks(os.getpid()) is not None
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 20
    while process_start_ticks(child.pid) is not None:  # None for a zombie too
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.wait()
