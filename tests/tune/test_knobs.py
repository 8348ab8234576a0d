"""Knobs of a real recipe: the period of its updates, which limits the size of a CUDA graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from powerband.algos.dqn import DQN
from powerband.algos.fast_td3 import FastTD3
from powerband.algos.sac import SAC
from powerband.algos.settings import DQNConfig, FastTD3Config, SACConfig, TD3Config
from powerband.algos.td3 import TD3
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec
from powerband.recipes.gym import RECIPE
from powerband.tune.knobs import Knobs

SPEC = EnvSpec(TensorSpec((3,)), TensorSpec((1,)), low=-torch.ones(1), high=torch.ones(1))
DISCRETE = EnvSpec(TensorSpec((3,)), TensorSpec((), torch.int64), num_actions=2)


@pytest.mark.parametrize(
    ("algo", "learner", "settings", "period"),
    [
        ("sac", SAC, SACConfig(hidden=(8,)), 1),
        ("sac", SAC, SACConfig(hidden=(8,), policy_interval=2, target_interval=3), 6),
        ("td3", TD3, TD3Config(hidden=(8,), policy_interval=2), 2),
        ("fast_td3", FastTD3, FastTD3Config(hidden=(8,), policy_interval=3), 3),
        ("dqn", DQN, DQNConfig(hidden=(8,), target_interval=4), 4),
    ],
)
def test_update_period_is_that_of_the_learner(algo: str, learner: type, settings: Any, period: int):
    knobs = Knobs(RECIPE, dataclasses.replace(RECIPE.Config(algo=algo), **{algo: settings}))
    spec = DISCRETE if algo == "dqn" else SPEC
    assert knobs.update_period == period == learner(spec, settings, RankContext.single()).cycle.period


def test_update_period_ignores_settings_of_other_algorithms():
    config = RECIPE.Config(algo="ppo", sac=SACConfig(policy_interval=5))
    assert Knobs(RECIPE, config).update_period == 1


@pytest.mark.parametrize(("interval", "due", "updates"), [(1, 7, 7), (2, 7, 6), (2, 1, 0), (4, 8, 8)])
def test_graph_contains_complete_cycles(interval: int, due: int, updates: int):
    config = RECIPE.Config(algo="sac", sac=SACConfig(policy_interval=interval))
    assert Knobs(RECIPE, config).graph_updates(due) == updates
