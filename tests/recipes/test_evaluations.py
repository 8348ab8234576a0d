"""Every recipe's evaluation refuses invalid numbers before it loads or plays anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerband.cli import main as cli
from powerband.cli.catalogue import load
from powerband.core.config import resolve
from powerband.core.errors import ConfigError
from powerband.core.recipe import load_object


def options(recipe: str) -> type:
    return load_object(load(recipe).Evaluation)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("gym", "episodes=0"),
        ("metaworld", "episodes=0 size=8"),
        ("snakes", "episodes=1 workers=-1"),
        ("uav", "episodes=0 n_agents=0 comm_range_m=-1 workers=-1"),
        ("sketchnav", "plans=-1 workers=-1"),
        ("libero", "episodes=-1 num_tasks=-1 max_steps=-1 exec_horizon=-1 sample_steps=-1 workers=-2 threads=-1"),
    ],
)
def test_a_number_below_its_limit_is_refused_by_name(recipe: str, words: str) -> None:
    for word in words.split():
        name, value = word.split("=")
        with pytest.raises(ConfigError, match=rf"^{name}={value} \(command line\): {value} is below -?\d+"):
            resolve(options(recipe), [word])


def test_a_member_of_a_list_is_named() -> None:
    with pytest.raises(ConfigError, match=r"n_agents=2,0 \(command line\): 0 is below 1"):
        resolve(options("uav"), ["n_agents=2,0"])


@pytest.mark.parametrize("recipe", ["gym", "snakes", "uav"])
def test_no_run_trains_on_the_episodes_of_an_evaluation(recipe: str, tmp_path: Path, capsys) -> None:
    """These recipes draw all episodes from one seed; the others hold out plans, goals or initial states."""
    first = load(recipe).held_out_seeds[0]
    arguments = {"gym": ["env_id=CartPole-v1"], "snakes": [], "uav": ["variant=smoke"]}[recipe]
    assert cli.main(["train", recipe, *arguments, f"seed={first}", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "train on their episodes" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
    assert options(recipe)().seed in load(recipe).held_out_seeds
    with pytest.raises(ConfigError, match="would repeat its episodes"):
        load(recipe).refuse_held_out(3, 3)
