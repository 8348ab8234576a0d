"""What every recipe's evaluation refuses: numbers that cannot be, before anything is loaded or played."""

from __future__ import annotations

import pytest

from powerband.core.config import ConfigError, resolve
from powerband.recipes import gym, libero_score, metaworld, sketchnav_score, snakes_match, uav_mission


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (gym, "episodes=0"),
        (metaworld, "episodes=0 size=8"),
        (snakes_match, "episodes=1 threads=-1"),
        (uav_mission, "missions=0 n_agents=0 comm_range_m=-1 threads=-1"),
        (sketchnav_score, "plans=-1 threads=-1"),
        (
            libero_score,
            "episodes=0 num_tasks=-1 max_steps=-1 exec_horizon=-1 sample_steps=-1 num_workers=-2 threads=-1",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.rpartition(".")[2],
)
def test_a_number_below_its_least_is_refused_by_name(recipe, words: str) -> None:
    for word in words.split():
        with pytest.raises(ConfigError, match=rf"{word} is below"):
            resolve(recipe.Evaluation, [word])


def test_of_several_numbers_the_one_is_named() -> None:
    with pytest.raises(ConfigError, match="n_agents=0 is below 1. Write n_agents=1 or more."):
        resolve(uav_mission.Evaluation, ["n_agents=2,0"])
