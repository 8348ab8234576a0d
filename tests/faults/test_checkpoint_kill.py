"""Checkpoints under SIGKILL at random instants: whatever is left, the newest one that verifies is whole."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest
import torch

from powerband.core.run.checkpoint import load_checkpoint, resolve_resume

SAVE_FOR_EVER = """
import sys, torch
from pathlib import Path
from powerband.core.run.checkpoint import CheckpointWriter
step = int(sys.argv[2])
while True:
    step += 1
    writer = CheckpointWriter(Path(sys.argv[1]), step)
    tree = {"x": torch.full((400_000,), float(step)), "step": step}
    files = writer.write("shared", tree) | writer.write("rank0", tree)
    writer.commit(files, {"world_size": 1})
    print(step, flush=True)
"""


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_a_kill_at_any_instant_leaves_a_whole_checkpoint(tmp_path, kills):
    for name in ("run.json", "config.json"):
        (tmp_path / name).write_text("{}")
    randomness, reached = random.Random(kills), 0
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path), str(reached)], stdout=subprocess.PIPE
        )
        process.stdout.readline()
        time.sleep(randomness.uniform(0.0, 0.06))
        process.kill()
        said = [int(word) for word in process.stdout.read().split()]
        process.wait()
        path, _ = resolve_resume(str(tmp_path))
        assert int(path.name) >= max(said, default=reached + 1)
        for shard in ("shared", "rank0"):
            tree, _ = load_checkpoint(path, shard)
            assert torch.equal(tree["x"], torch.full((400_000,), float(tree["step"])))
        reached = int(path.name)
