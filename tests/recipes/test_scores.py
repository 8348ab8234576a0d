"""The score that a recipe names is a figure of its evaluation during training."""

from __future__ import annotations

from pathlib import Path

import pytest

import runs
from powerband.cli.catalogue import RECIPES, load

SMALL = {
    "ppo": ["env_steps=64", "eval_interval=64", "eval_games=2"],
    "iac": ["env_steps=15", "eval_interval=15", "eval_missions=2"],
    "metaworld": ["env_steps=120", "eval_interval=100", "eval_episodes=1"],
}


@pytest.mark.parametrize("case", SMALL)
def test_score_is_a_figure_of_the_evaluation(case: str, tmp_path: Path) -> None:
    recipe = load(runs.SMALL[case][0])
    run = runs.train(case, tmp_path / "run", *SMALL[case])
    assert any(f"eval/{recipe.score}" in line for line in runs.metrics(run))


def test_every_recipe_names_a_score_and_an_option_for_its_tasks() -> None:
    assert all(load(name).score for name in RECIPES)
    assert load("gym").task == "env_id" and load("metaworld").task == "task" and load("uav").task == ""
