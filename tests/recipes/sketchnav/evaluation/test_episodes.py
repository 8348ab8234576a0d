"""Episodes that an evaluation plays: numbers that are spread over a set, and training episodes of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.evaluation.episodes import evaluation_sets, spread_episodes
from powerband.recipes.sketchnav.evaluation.options import Evaluation
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes


@pytest.mark.parametrize(("count", "available"), [(100, 1000), (2, 4), (3, 1000), (4000, 8000), (7, 14), (1, 2)])
def test_spread_episodes_have_smooth_and_abstract_sketches_in_turn(count: int, available: int) -> None:
    numbers = spread_episodes(count, available)
    assert numbers is not None and (numbers % 2).tolist() == [index % 2 for index in range(count)]
    assert bool((numbers.diff() > 0).all()) and 0 <= int(numbers[0]) and int(numbers[-1]) < available


@pytest.mark.parametrize(("count", "available"), [(3, 4), (7, 13), (99, 100)])
def test_more_than_half_of_the_episodes_are_spread_evenly(count: int, available: int) -> None:
    numbers = spread_episodes(count, available)
    assert numbers is not None and numbers.tolist() == [index * available // count for index in range(count)]
    assert spread_episodes(0, available) is None and spread_episodes(available, available) is None


def test_training_episodes_of_a_file_have_its_sketches(tmp_path: Path) -> None:
    source_config = configure("sketchnav", ["variant=smoke"])[2].config
    file = tmp_path / "train.safetensors"
    load_episodes(source_config, "train").save(file, source_config.scenes, "train", 0)
    config = configure("sketchnav", ["variant=smoke", f"episode_file={file}"])[2].config
    ((split, sketch, episodes, order),) = evaluation_sets(config, Evaluation(splits=("train",)))
    assert (split, sketch, len(episodes), order) == ("train", "file", 4, None)
    with pytest.raises(ConfigError, match="sketches=abstract has no effect on splits=train.*Leave sketches out"):
        next(evaluation_sets(config, Evaluation(splits=("val_unseen", "train"), sketches=("abstract",))))
    _, sketch, *_ = next(evaluation_sets(config, Evaluation(splits=("val_unseen",), sketches=("abstract",))))
    assert sketch == "abstract"
