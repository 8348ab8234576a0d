"""A training run killed with SIGKILL at random instants goes on from a verified checkpoint, every time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest

import runs
from powerband.core.run.checkpoint import resolve_resume

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_kill_dash_nine_at_random_instants(tmp_path, kills):
    run = runs.train("ddpg", tmp_path / "run", "env_steps=100", "save_interval=20")
    randomness, reached = random.Random(0), 100
    for _ in range(kills):
        command = [sys.executable, "-m", "powerband", "train", "snakes", f"resume={run}", "env_steps=100000000"]
        process = subprocess.Popen(
            [*command, "log_interval_s=0.2"],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for line in process.stdout:
            if "steps/s" in line:
                break
        time.sleep(randomness.uniform(0.0, 0.4))
        process.kill()
        process.communicate()
        path, _ = resolve_resume(str(run))
        assert int(path.name) >= reached
        reached = int(path.name)
    before = reached
    runs.resume("ddpg", run, f"env_steps={reached + 40}")
    assert runs.state(run)["shared/run/env_steps"] == before + 40
    steps = [line["env_steps"] for line in runs.metrics(run)]
    assert steps == sorted(set(steps)), "a step stands twice in metrics.jsonl"
