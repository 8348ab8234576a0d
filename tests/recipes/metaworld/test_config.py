"""Settings that the stages of metaworld do not support are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from powerband.cli.catalogue import configure
from powerband.core.config import RunConfig, to_json
from powerband.core.errors import ConfigError
from powerband.loops.config import OffPolicyConfig
from powerband.recipes.metaworld.config import Config, check
from powerband.recipes.metaworld.stages.online_distill import loop_sizes


def test_statistics_of_observations_are_refused():
    config = configure("metaworld", ["variant=smoke", "sac.normalize_obs=true"])[2].config
    with pytest.raises(ConfigError, match="Write sac.normalize_obs=false"):
        check(config, 1)


@pytest.mark.parametrize("option", ["off_policy.normalize_reward=true", "off_policy.clip_reward=1"])
def test_experts_record_rewards_in_the_units_of_their_labels(option):
    with pytest.raises(ConfigError, match=f"{option.split('=')[0]} is not supported in the stage expert"):
        configure("metaworld", ["expert", "variant=smoke", option])
    configure("metaworld", ["student", "variant=smoke", option])


def test_samples_that_overlap_are_refused():
    with pytest.raises(ConfigError, match="transitions would be stored twice. Write collect.samples=400"):
        configure("metaworld", ["expert", "variant=single", "collect.interval=400"])


@pytest.mark.parametrize("stage", ["represent", "distill", "pipeline"])
def test_stages_that_need_experts_refuse_an_empty_list(stage):
    with pytest.raises(ConfigError, match=f"the stage {stage} needs experts"):
        configure("metaworld", [stage, "variant=smoke", "tasks="])


def test_online_distill_ignores_the_options_of_sac_returns():
    given = OffPolicyConfig(n_step=3, normalize_reward=True, priority_exponent=0.6, clip_reward=1.0, random_steps=500)
    sizes = loop_sizes(Config(off_policy=given, run=RunConfig(env_steps=60_000)), 1)
    assert (sizes.n_step, sizes.normalize_reward, sizes.priority_exponent, sizes.clip_reward) == (1, False, 0.0, 0.0)
    assert sizes.random_steps == sizes.learning_starts == 8_000


def saved_run(folder: Path, stage: str, *arguments: str) -> Path:
    """Writes the files of a run of `stage` that a resume reads first, and returns `folder`."""
    config = configure("metaworld", [stage, "variant=smoke", *arguments])[2].config
    (folder / "config.json").write_text(to_json(config))
    (folder / "run.json").write_text(json.dumps({"recipe": "metaworld", "stage": stage}))
    return folder


@pytest.mark.parametrize(
    ("stage", "option", "steps"),
    [
        ("expert", "expert_steps=5000", 5000),
        ("student", "student_steps=5000", 5000),
        ("represent", "represent_updates=50", 50 * 64),
    ],
)
def test_a_budget_of_the_stage_applies_to_a_resumed_run(stage: str, option: str, steps: int, tmp_path: Path):
    run = saved_run(tmp_path, stage, "env_steps=300")

    def resumed(*arguments: str) -> int:
        return configure("metaworld", [f"resume={run}", *arguments])[2].config.run.env_steps

    assert resumed() == 300 and resumed(option) == steps
    assert resumed(option, "env_steps=400") == 400, "env_steps replaces the budget of the stage"


@pytest.mark.parametrize("option", ["env_steps=1200", "online_steps=1200"])
def test_online_distill_refuses_another_budget_with_resume(option: str, tmp_path: Path):
    run = saved_run(tmp_path, "online_distill")
    assert configure("metaworld", [f"resume={run}"])[2].config.run.env_steps == 800
    with pytest.raises(ConfigError, match="env_steps=1200 differs from env_steps=800.*new run with online_steps=1200"):
        configure("metaworld", [f"resume={run}", option])
