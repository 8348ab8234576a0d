"""Mutated checkpoints: what is loaded is exactly what was saved, or the run is refused; nothing outside changes."""

from __future__ import annotations

from pathlib import Path

import pytest

import runs
from core.run.checkpoints.checkpoint_mutations import CheckpointMutations


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_random_mutations_of_a_checkpoint_folder(count: int, tmp_path: Path) -> None:
    arguments = ["env_steps=80", "save_interval=20", "keep_checkpoints=3", "replay_size=100"]
    run = runs.train("ddpg", tmp_path / "run", *arguments, "seed=1")
    other = runs.train("ddpg", tmp_path / "other", *arguments, "seed=2")
    mutations = CheckpointMutations(run, other, tmp_path / "mutations", seed=count)
    problems = [problem for number in range(count) for problem in mutations.check(number)]
    assert problems == []
    assert min(mutations.counts[name] for name in ("loaded the newest", "fell back", "refused")) > count // 50
