"""Recipes' networks: made-up batches fit every learner, memory too; a recipe that cannot be built says why."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from powerband.algos.ppo import PPO, PPOConfig
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.data.types import EnvSpec, TensorSpec
from powerband.doctor import recipes
from powerband.doctor.scope import Scope
from powerband.recipes import gym

CPU = torch.device("cpu")


def ppo(spec: EnvSpec, **words: Any) -> PPO:
    return PPO(spec, PPOConfig(hidden=(8,), **words), "cpu", Precision("fp32", "cpu"), NoiseSource(0))


@pytest.mark.parametrize("gru", [0, 4])
@pytest.mark.parametrize("agents", [None, 3])
def test_a_made_up_batch_fits_with_and_without_memory_and_agents(gru: int, agents: int | None) -> None:
    lead = () if agents is None else (agents,)
    shapes = {"own": TensorSpec((*lead, 5)), "action_mask": TensorSpec((*lead, 4), torch.bool)}
    spec = EnvSpec(obs=shapes, action=TensorSpec(lead, torch.int64), num_actions=4, num_agents=agents)
    learner = ppo(spec, gru=gru)
    batch = recipes.made_up_batch(learner, spec, CPU, 32)
    assert batch["returns"].shape == ((16, 2) if gru else (32,)) + lead
    assert ("carry" in batch) == bool(gru)
    assert all(bool(torch.isfinite(value).all()) for value in learner.update(batch).values())


def test_sizes_of_an_update_are_those_of_the_loop() -> None:
    config = gym.Config()
    assert recipes.rows_of_update(config.off_policy) == config.off_policy.global_batch_size
    on = config.on_policy
    assert recipes.rows_of_update(on) == on.num_envs * on.num_steps // on.minibatches


def recipe(**parts: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(Config=lambda **words: gym.Config(**words), **parts)


def broken(config: Any, device: Any, precision: Any) -> None:
    raise ModuleNotFoundError("No module named 'metaworld'", name="metaworld")


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (recipe(), "skipped", "no networks"),
        (recipe(networks=broken), "skipped", "needs metaworld"),
    ],
)
def test_a_recipe_that_cannot_be_timed_says_why(found: Any, status: str, words: str) -> None:
    row = recipes.recipe_row("x cpu", lambda: found, None, CPU)
    assert row.status == status and words in row.measured


def test_an_update_that_is_not_finite_fails() -> None:
    class Broken(PPO):
        def update(self, batch: Any) -> dict[str, torch.Tensor]:
            return {"losses/value": torch.tensor(float("nan"))}

    spec = EnvSpec(obs=TensorSpec((3,)), action=TensorSpec((), torch.int64), num_actions=2)
    learner = Broken(spec, PPOConfig(hidden=(8,)), "cpu", Precision("fp32", "cpu"), NoiseSource(0))
    loop = gym.Config().on_policy
    row = recipes.recipe_row("x cpu", lambda: recipe(networks=lambda *words: (learner, spec, loop)), None, CPU)
    assert row.status == "fail" and "losses/value" in row.measured


def test_a_recipe_that_cannot_be_imported_keeps_no_other_from_being_timed() -> None:
    def gone() -> None:
        raise RuntimeError("broken recipe")

    scope = Scope(recipes={"gone": gone, "gym": lambda: gym})
    scope.__dict__["devices"] = [CPU]
    assert [name for name, _ in recipes.checks(scope)] == ["gone cpu", "gym sac cpu", "gym ppo cpu"]
