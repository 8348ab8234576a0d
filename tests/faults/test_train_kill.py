"""A training run killed with SIGKILL at random instants goes on from a verified checkpoint, every time."""

from __future__ import annotations

import random
import time

import pytest

import runs
from faults.forks import Forks
from powerband.core.run.checkpoints.checkpoint import resolve_resume


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_kill_dash_nine_at_random_instants(tmp_path, kills):
    run = runs.train("ddpg", tmp_path / "run", "env_steps=100", "save_interval=20")
    randomness, reached = random.Random(0), 100
    with Forks("resume_forever") as forks:
        for _ in range(kills):
            forks.start(str(run))
            while "steps/s" not in forks.readline():
                pass
            time.sleep(randomness.uniform(0.0, 0.4))
            forks.kill()
            path, _ = resolve_resume(str(run))
            assert int(path.name) >= reached
            reached = int(path.name)
    before = reached
    runs.resume("ddpg", run, f"env_steps={reached + 40}")
    assert runs.state(run)["shared/run/env_steps"] == before + 40
    steps = [line["env_steps"] for line in runs.metrics(run)]
    assert steps == sorted(set(steps)), "a step stands twice in metrics.jsonl"
