"""The evaluation explains options that have another meaning in the guide's code, and states both numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerband.core.errors import ConfigError
from powerband.recipes.libero.config import Config
from powerband.recipes.libero.evaluation_options import finalize_evaluation
from powerband.recipes.libero.settings import Evaluation, RDTConfig


def test_the_hub_name_of_an_encoder_selects_the_encoder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, (message,) = finalize_evaluation(Config(text_encoder="t5"), Evaluation(text_encoder="google/t5-v1_1-xxl"))
    assert options.text_encoder == "" and message.endswith("The run's encoder applies: t5.")
    (tmp_path / "google" / "t5-v1_1-xxl").mkdir(parents=True)
    evaluation = Evaluation(text_encoder="google/t5-v1_1-xxl")
    assert finalize_evaluation(Config(), evaluation) == (evaluation, []), "an existing folder is used"
    evaluation = Evaluation(vision_encoder="/models/siglip")
    assert finalize_evaluation(Config(), evaluation) == (evaluation, []), "a missing folder is refused later"


def test_the_limit_of_an_episode_is_stated_in_actions_and_inferences() -> None:
    _, (message,) = finalize_evaluation(Config(), Evaluation(max_steps=200, exec_horizon=16))
    assert "200 counts actions, in 13 inferences of 16 actions" in message and "max_steps=3200" in message


def test_steps_of_the_sampler_are_refused_without_diffusion() -> None:
    regression = Config(rdt=RDTConfig(objective="regression"))
    with pytest.raises(ConfigError, match=r"sample_steps=3 has no effect: .*objective=regression.*Leave sample_steps"):
        finalize_evaluation(regression, Evaluation(sample_steps=3))
    assert finalize_evaluation(regression, Evaluation()) == (Evaluation(), [])
    assert finalize_evaluation(Config(), Evaluation(sample_steps=3)) == (Evaluation(sample_steps=3), [])


def test_more_episodes_than_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="episodes=3 is more than the 2 seeds"):
        finalize_evaluation(Config(), Evaluation(seeds=(5, 6), episodes=3))
    assert finalize_evaluation(Config(), Evaluation(seeds=(5, 6)))[1] == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_tasks": 2}, True),
        ({"num_tasks": 1}, False),
        ({"num_tasks": 2, "tasks": ("0", "1")}, False),
        ({"num_tasks": 2, "benchmark": "libero_90"}, True),
        ({"num_tasks": 2, "benchmark": "libero_10"}, False),
    ],
)
def test_more_tasks_than_the_run_has_are_mentioned(options: dict, expected: bool) -> None:
    _, messages = finalize_evaluation(Config(), Evaluation(**options))
    assert bool(messages) == expected
