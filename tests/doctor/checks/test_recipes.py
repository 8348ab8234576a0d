"""Tests of section recipes: synthetic batches fit every learner, and recipes that cannot be built are explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from powerband.algos.ppo import PPO
from powerband.algos.settings import PPOConfig
from powerband.core.rank_context import RankContext
from powerband.core.recipe import Recipe
from powerband.data.types import EnvSpec, TensorSpec
from powerband.doctor.checks import recipes
from powerband.doctor.context import CheckContext
from powerband.recipes.gym import RECIPE as GYM

CPU = torch.device("cpu")


def make_ppo(spec: EnvSpec, **settings: Any) -> PPO:
    return PPO(spec, PPOConfig(hidden=(8,), **settings), RankContext.single())


@pytest.mark.parametrize("gru", [0, 4])
@pytest.mark.parametrize("agents", [None, 3])
def test_a_synthetic_batch_fits_recurrent_and_multi_agent_learners(gru: int, agents: int | None) -> None:
    leading = () if agents is None else (agents,)
    shapes = {"own": TensorSpec((*leading, 5)), "action_mask": TensorSpec((*leading, 4), torch.bool)}
    spec = EnvSpec(obs=shapes, action=TensorSpec(leading, torch.int64), num_actions=4, num_agents=agents)
    learner = make_ppo(spec, gru=gru)
    batch = recipes.synthetic_batch(learner, spec, CPU, 32)
    assert batch["returns"].shape == ((16, 2) if gru else (32,)) + leading
    assert ("carry" in batch) == bool(gru)
    assert all(bool(torch.isfinite(value).all()) for value in learner.update(batch).values())


@pytest.mark.parametrize("algo", ["sac", "td3", "fast_td3", "ppo"])
def test_a_recipe_is_timed_at_the_sizes_of_its_loop(algo: str) -> None:
    row = recipes.recipe_row("gym cpu", lambda: GYM, algo, CPU)
    loop = GYM.Config(algo=algo).loop
    assert row.status == "ok" and row.metrics["update_ms"] > 0, row
    assert (row.metrics["update_rows"], row.metrics["act_envs"]) == (loop.update_rows, loop.num_envs)


def recipe(build_learner: Callable[..., Any] | None) -> Recipe:
    return replace(GYM, build_learner=build_learner)


def without_module(config: Any, context: RankContext) -> None:
    raise ModuleNotFoundError("No module named 'metaworld'", name="metaworld")


def without_environment(config: Any, context: RankContext) -> None:
    raise ValueError("Pendulum-v1 has\n continuous actions")


@pytest.mark.parametrize(
    ("build_learner", "text"),
    [
        (None, "no build_learner"),
        (without_module, "needs the module metaworld"),
        (without_environment, "Pendulum-v1 has continuous actions"),
    ],
)
def test_a_recipe_that_cannot_be_timed_is_skipped_with_the_reason(
    build_learner: Callable[..., Any] | None, text: str
) -> None:
    row = recipes.recipe_row("x cpu", lambda: recipe(build_learner), None, CPU)
    assert row.status == "skipped" and text in row.message


def test_an_update_that_is_not_finite_fails() -> None:
    class BrokenPPO(PPO):
        def update(self, batch: Any) -> dict[str, torch.Tensor]:
            return {"losses/value": torch.tensor(float("nan"))}

    spec = EnvSpec(obs=TensorSpec((3,)), action=TensorSpec((), torch.int64), num_actions=2)
    learner = BrokenPPO(spec, PPOConfig(hidden=(8,)), RankContext.single())
    loop = GYM.Config().on_policy
    row = recipes.recipe_row("x cpu", lambda: recipe(lambda *_: (learner, spec, loop)), None, CPU)
    assert row.status == "fail" and "losses/value" in row.message


def test_a_recipe_that_cannot_be_imported_does_not_stop_the_others() -> None:
    def broken_import() -> Recipe:
        raise RuntimeError("broken recipe")

    context = CheckContext(recipes={"broken": broken_import, "gym": lambda: GYM})
    context.__dict__["devices"] = [CPU]
    names = [name for name, _ in recipes.checks(context)]
    assert names == ["broken cpu", "gym sac cpu", "gym td3 cpu", "gym dqn cpu", "gym ppo cpu"]
