"""Trained snakes are loaded from run folders, including those with option names of earlier versions."""

from __future__ import annotations

import json

import pytest

import runs
from powerband.algos.ddpg import DDPG
from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.recipes.snakes.learners import load


def test_a_run_with_old_option_names_is_loaded(tmp_path):
    run_dir = runs.train("ddpg", tmp_path / "run", "env_steps=80")
    file = run_dir / "config.json"
    stored = json.loads(file.read_text())
    stored["off_policy"]["warmup"] = stored["off_policy"].pop("learning_starts")
    file.write_text(json.dumps(stored))
    learner, observation = load(run_dir)
    assert isinstance(learner, DDPG) and observation == "fork35"


def test_a_policy_with_a_memory_is_refused():
    with pytest.raises(ConfigError, match="Write ppo.gru=0"):
        configure("snakes", ["ppo.gru=64"])
