"""Checkpoints under SIGKILL at random instants: whatever is left, the newest one that verifies is whole."""

from __future__ import annotations

import random
import time

import pytest
import torch

from faults.forks import FLOATS, Forks
from powerband.core.run.checkpoints.checkpoint import load_checkpoint, resolve_resume


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_a_kill_at_any_instant_leaves_a_whole_checkpoint(tmp_path, kills):
    for name in ("run.json", "config.json"):
        (tmp_path / name).write_text("{}")
    randomness, reached = random.Random(kills), 0
    with Forks("save_forever") as forks:
        for _ in range(kills):
            forks.start(str(tmp_path), reached)
            forks.readline()
            time.sleep(randomness.uniform(0.0, 0.06))
            saved = [int(line) for line in forks.kill()]
            path, _ = resolve_resume(str(tmp_path))
            assert int(path.name) >= max(saved, default=reached + 1)
            for shard in ("shared", "rank0"):
                tree, _ = load_checkpoint(path, shard)
                assert torch.equal(tree["x"], torch.full((FLOATS,), float(tree["step"])))
            reached = int(path.name)
