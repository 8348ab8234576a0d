"""Ranks and simulators that stop in real runs are named in time, and the run ends with the status of a stall."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import runs
from powerband.cli import main as cli
from powerband.core.machine.utilisation import process_tree
from powerband.core.run_folder import process_start_ticks

STATUS = 128 + signal.SIGALRM
NAMED_S = 10.0
"""Seconds within which a run with ``stall_s=5`` must name a stall."""
STOPPED = "is stopped (state T"


RUNS = {
    "gym": (
        "gym env_id=CartPole-v1 algo=dqn dqn.hidden=32 off_policy.num_envs=2 global_batch_size=32 learning_starts=40 "
        "random_steps=40 num_workers=1"
    ).split(),
    "snakes": runs.SMALL["ddpg"],
    "uav": runs.SMALL["iac"],
    "sketchnav": runs.SMALL["sketchnav"],
}
"""Recipe -> arguments of a small run. Only the simulators of gym are processes."""


class Job:
    """A training run in another process, with what it has printed."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.output = folder / "run", folder / "output"
        command = [sys.executable, "-m", "powerband", "train", *arguments, *runs.COMMON, f"run_dir={self.folder}"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.output.open("w") as sink:
            self.process = subprocess.Popen(command, stdout=sink, stderr=sink, env=variables)

    def printed(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str, seconds: float = 120) -> float:
        """Waits until the job has printed `text`, and returns the seconds that it took."""
        began = time.monotonic()
        while text not in self.printed():
            assert time.monotonic() - began < seconds and self.process.poll() is None, self.printed()
            time.sleep(0.05)
        return time.monotonic() - began

    def text(self, name: str) -> str:
        """Content of a file in the run folder. Files follow the printed line, because the terminal or disk may hang."""
        path, deadline = self.folder / name, time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return path.read_text()

    def ranks(self) -> list[int]:
        return [rank["pid"] for rank in json.loads((self.folder / "processes.json").read_text())["ranks"]]

    def workers(self, rank: int) -> list[int]:
        """Simulators that a rank has started."""
        return [pid for pid in process_tree(rank) if "envs.workers.worker" in Path(f"/proc/{pid}/cmdline").read_text()]


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Job]:
    """A job that has trained for a moment; all of its processes end with the context."""
    job = Job(folder, *arguments, "env_steps=100000000", "log_interval_s=0.5")
    try:
        job.wait_for("steps/s")
        yield job
    finally:
        for pid in process_tree(job.process.pid):
            os.kill(pid, signal.SIGKILL)
        job.process.wait()


def test_a_stopped_simulator_and_a_stopped_rank_of_two_are_named(tmp_path: Path, capsys) -> None:
    with running(tmp_path, *RUNS["gym"], "nproc=2", "save_interval=100", "stall_s=2") as job:
        pids = job.ranks()
        worker = job.workers(pids[1])[0]
        os.kill(worker, signal.SIGSTOP)
        job.wait_for("Stacks:")
        line = next(text for text in job.printed().splitlines() if "Stacks:" in text)
        assert f"(process {pids[1]})" in line and "rank 1 on" in line and "in phase env_wait" in line
        assert f"its process {worker} (python) {STOPPED}" in line and re.search(r"rank 0 [23] s ago waiting", line)
        assert "waits a little longer" in line, "the rank would replace its simulator after a minute"
        assert "in wait_for_step" in job.text("stacks/rank1.txt")
        assert "in all_reduce" in job.text("stacks/rank0.txt")
        assert "in env_wait" in job.text("stall.json")
        assert cli.main(["watch", str(job.folder), "--once", "--json"]) == 0
        reading = json.loads(capsys.readouterr().out)
        assert reading["state"] == "stalled" and "in env_wait (rank 1)" in reading["detail"]
        os.kill(worker, signal.SIGCONT)
        job.wait_for("make progress again")
        assert not (job.folder / "stall.json").exists()
        job.text("checkpoints/last")
        os.kill(pids[0], signal.SIGSTOP)
        assert job.process.wait(60) == STATUS, job.printed()
        line = next(text for text in job.printed().splitlines() if "The run ends" in text)
        assert f"rank 0 on {os.uname().nodename} (process {pids[0]})" in line and STOPPED in line
        assert f"powerband train gym resume={job.folder}" in line and "Traceback" not in job.printed()
        deadline = time.monotonic() + 20
        while any(process_start_ticks(pid) for pid in (*pids, worker)):
            assert time.monotonic() < deadline, "a process of the run is still alive"
            time.sleep(0.05)
        assert cli.main(["watch", str(job.folder), "--once"]) == 0
        assert "stalled: rank 0 on" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(50))
def test_random_stops(tmp_path: Path, number: int) -> None:
    """A rank or a simulator of a random recipe stops at a random instant."""
    randomness = random.Random(number)
    recipe = randomness.choice(list(RUNS))
    ranks = 2 if recipe in ("gym", "snakes") and randomness.random() < 0.6 else 1
    arguments = [*RUNS[recipe], *(["supervise=false"] if recipe == "gym" else [])]
    with running(tmp_path, *arguments, f"nproc={ranks}", "stall_s=5") as job:
        time.sleep(2 + randomness.uniform(0, 2))
        pids = job.ranks()
        rank = randomness.randrange(len(pids))
        workers = job.workers(pids[rank])
        target = randomness.choice([pids[rank], *workers])
        os.kill(target, signal.SIGSTOP)
        seconds = job.wait_for("has made no progress for", NAMED_S)
        line = next(text for text in job.printed().splitlines() if "has made no progress for" in text)
        assert f"rank {rank} on" in line and f"(process {pids[rank]})" in line and STOPPED in line
        assert str(target) in line
        assert abs(job.process.wait(60)) in (STATUS, signal.SIGALRM)
        print(f"\nrandom stop {number}: {recipe}, {ranks} ranks, {'rank' if target == pids[rank] else 'simulator'}: "
              f"{seconds:.1f} s")  # fmt: skip
