"""Fixtures: two tiny runs that the tests of this folder read and do not change."""

from __future__ import annotations

from pathlib import Path

import pytest

import runs


@pytest.fixture(scope="session")
def sac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of SAC: 240 steps, 200 of them with updates, and one evaluation in between."""
    arguments = (
        "env_steps=240 log_interval=40 eval_interval=120 eval_episodes=2 num_workers=0 update_interval=4".split()
    )
    return runs.train("sac", tmp_path_factory.mktemp("runs") / "sac", *arguments)


@pytest.fixture(scope="session")
def other_sac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of SAC with another batch size and seed, without evaluation."""
    arguments = "env_steps=160 log_interval=40 num_workers=0 update_interval=4 global_batch_size=64 seed=1".split()
    return runs.train("sac", tmp_path_factory.mktemp("runs") / "other", *arguments)
