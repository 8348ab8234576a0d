"""The process that evaluates for a rank: its work hides no stall, and is waited for at the end of the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powerband.core.run_folder import process_start_ticks
from powerband.core.stalls.observation import RankObserver
from powerband.core.stalls.progress import PAGE, Progress

CHILD = "import time, sys\nprint(1, flush=True)\nwhile True: pass"


@pytest.mark.parametrize(
    ("named", "phase", "halted", "idle"),
    [
        (True, "update", False, True),
        (True, "eval", False, False),
        (False, "update", False, False),
        (True, "eval", True, True),
        (False, "update", True, True),
    ],
)
def test_the_work_of_the_evaluator_counts_while_the_rank_waits_for_it(
    named: bool, phase: str, halted: bool, idle: bool
) -> None:
    # A sleeping process stands for the rank. Its child computes.
    code = f"import subprocess, sys, time\nc = subprocess.Popen([sys.executable, '-c', {CHILD!r}], stdout=-1)\n"
    code += "c.stdout.readline()\nprint(c.pid, flush=True)\nsys.stdin.read()\nc.kill()"
    rank = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert rank.stdout is not None and rank.stdin is not None
    try:
        child = int(rank.stdout.readline())
        while Path(f"/proc/{rank.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "S":
            time.sleep(0.01)  # it still runs on its way to `read`
        if halted:
            rank.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
        page = memoryview(bytearray(PAGE))
        progress = Progress(page)
        began = process_start_ticks(rank.pid)
        assert began is not None
        progress.begin(0, 1, began, 0, time.perf_counter_ns())
        progress._words[1] = rank.pid  # the word PID, which `begin` sets to this process
        progress.set_evaluator(child if named else 0)
        progress.beat[0] = time.perf_counter_ns() + progress.phase(phase)
        observer, start = RankObserver(page, suspect_s=0.0), time.perf_counter_ns()
        for second in (1, 2, 3):  # moments of the clock, not time that passes
            observation = observer.observe(start + second * 10**9)
        assert observation is not None
        assert (observation.idle_s > 2) == idle
    finally:
        rank.send_signal(signal.SIGCONT)
        rank.stdin.close()
        rank.wait()
