"""A process that stops, hangs or waits is named and ended by the process that watches it; one that works is not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powerband.core.run_folder import write_processes
from powerband.core.stalls import watch

SOURCE = Path(watch.__file__).parents[3]
RANK = """
import ctypes, os, signal, subprocess, sys, time
from powerband.core.stalls.watched_rank import WatchedRank

folder, behaviour, on_stall = sys.argv[1:]
rank = WatchedRank(1.0, on_stall)
rank.progress.set_folder(folder)
rank.progress.loop_begins()
rank.progress.iteration(1234, 1)


def enter(phase):
    rank.progress.beat[0] = time.perf_counter_ns() + rank.progress.phase(phase)


def holds_the_lock_of_python():
    enter("update")
    while True:
        ctypes.PyDLL(None).sleep(60)


def stopped():
    enter("act")
    os.kill(os.getpid(), signal.SIGSTOP)
    enter("act")
    time.sleep(0.5)


def child_is_stopped():
    enter("env_wait")
    child = subprocess.Popen(["sleep", "60"])
    os.kill(child.pid, signal.SIGSTOP)
    child.wait()


def works():
    enter("update")
    until = time.monotonic() + 2
    while time.monotonic() < until:
        pass


def evaluates():
    enter("eval")
    time.sleep(2)


time.sleep(0.7)  # the watching process starts
globals()[behaviour]()
rank.close()
print("went on")
"""


def start(folder: Path, behaviour: str, on_stall: str = "end") -> subprocess.Popen:
    write_processes(folder, [])
    (folder / "run.json").write_text(json.dumps({"recipe": "gym"}))
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last").write_text("1200\n")
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{RANK}"
    command = [sys.executable, "-c", code, str(folder), behaviour, on_stall]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


STALLS = [
    ("holds_the_lock_of_python", "update", "", "in holds_the_lock_of_python"),
    ("stopped", "act", "is stopped (state T", "shows no stack"),
    ("child_is_stopped", "env_wait", "(sleep) is stopped", "in child_is_stopped"),
]
"""Behaviour, and what is written about it: phase, reason and stack."""


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, subprocess.Popen]]:
    """Behaviour -> folder and process of a rank that stalls; all of them stall at once."""
    folders = {behaviour: tmp_path_factory.mktemp(behaviour) for behaviour, *_ in STALLS}
    return {behaviour: (folder, start(folder, behaviour)) for behaviour, folder in folders.items()}


@pytest.mark.parametrize(("behaviour", "phase", "why", "stack"), STALLS)
def test_a_stall_is_named_with_its_stacks_and_ends_the_run(
    stalled: dict, behaviour: str, phase: str, why: str, stack: str
) -> None:
    folder, process = stalled[behaviour]
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGALRM and not printed, errors
    assert errors.count("\n") == 1 and "Traceback" not in errors
    for part in ("rank 0 on ", f"(process {process.pid})", f"in phase {phase}", why, "at env step 1,234"):
        assert part in errors, errors
    assert f"env step 1200: powerband train gym resume={folder}" in errors
    assert stack in (folder / "stacks" / "rank0.txt").read_text()
    assert json.loads((folder / "processes.json").read_text())["ended"].startswith("stalled: rank 0 on ")
    assert not (folder / "stall.json").exists()


@pytest.mark.timed
def test_a_long_update_and_a_long_evaluation_are_no_stalls(tmp_path: Path) -> None:
    processes = []
    for behaviour in ("works", "evaluates"):
        (tmp_path / behaviour).mkdir()
        processes.append(start(tmp_path / behaviour, behaviour))
    for process in processes:
        printed, errors = process.communicate(timeout=60)
        assert printed == "went on\n" and errors == ""


def test_a_warning_is_withdrawn_when_the_rank_continues(tmp_path: Path) -> None:
    process, stall = start(tmp_path, "stopped", "warn"), tmp_path / "stall.json"
    deadline = time.monotonic() + 60
    while not stall.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    facts = json.loads(stall.read_text())
    assert (facts["rank"], facts["pid"], facts["phase"]) == (0, process.pid, "act")
    assert facts["message"].startswith("rank 0 on ") and 0 < time.time() - facts["since_s"] < 60
    process.send_signal(signal.SIGCONT)
    printed, errors = process.communicate(timeout=60)
    assert printed == "went on\n" and "make progress again" in errors and not stall.exists()
    assert json.loads((tmp_path / "processes.json").read_text())["ended"] is None
