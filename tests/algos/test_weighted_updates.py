"""Weights and errors of the rows of a batch, for prioritised replay, in SAC, TD3 and DQN."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from powerband.algos.dqn import DQN
from powerband.algos.sac import SAC
from powerband.algos.settings import DQNConfig, SACConfig, TD3Config
from powerband.algos.td3 import TD3
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, PrioritizedLearner, TensorSpec

ROWS = 16
BOUNDED = EnvSpec(TensorSpec((4,)), TensorSpec((2,)), low=-torch.ones(2), high=torch.ones(2))
DISCRETE = EnvSpec(TensorSpec((4,)), TensorSpec((), torch.int64), num_actions=3)
KINDS: dict[str, tuple[Any, Any]] = {
    "sac": (SAC, SACConfig(hidden=(16,), fused=False)),
    "sac fused": (SAC, SACConfig(hidden=(16,))),
    "td3": (TD3, TD3Config(hidden=(16,))),
    "dqn": (DQN, DQNConfig(hidden=(16,), max_grad_norm=None)),
    "qr-dqn": (DQN, DQNConfig(hidden=(16,), quantiles=5, dueling=True)),
}


def learner(name: str) -> Any:
    torch.manual_seed(0)
    kind, settings = KINDS[name]
    return kind(DISCRETE if "dqn" in name else BOUNDED, settings, RankContext.single())


def batch(name: str) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    action = torch.randint(3, (ROWS,), generator=draw) if "dqn" in name else torch.rand(ROWS, 2, generator=draw)
    return {
        "obs": torch.randn(ROWS, 4, generator=draw),
        "next_obs": torch.randn(ROWS, 4, generator=draw),
        "action": action,
        "reward": torch.randn(ROWS, generator=draw),
        "terminated": torch.arange(ROWS) % 2 == 0,
    }


@pytest.mark.parametrize("name", KINDS)
def test_weights_of_one_change_nothing(name):
    plain, weighted, data = learner(name), learner(name), batch(name)
    assert isinstance(weighted, PrioritizedLearner)
    for _ in range(3):
        expected, figures = plain.update(data), weighted.update({**data, "weight": torch.ones(ROWS)})
        for key, value in expected.items():
            torch.testing.assert_close(figures[key], value, rtol=1e-4, atol=1e-5, msg=key)
    for key, value in plain.policy_state().items():
        torch.testing.assert_close(weighted.policy_state()[key], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_a_row_counts_in_proportion_to_its_weight(name):
    """The mean of the losses of single rows, times their weights, is the loss of the batch."""
    data, weight = batch(name), torch.linspace(0.0, 1.0, ROWS)
    each = []
    for row in range(ROWS):
        only = torch.zeros(ROWS)
        only[row] = 1.0
        each.append(learner(name).update({**data, "weight": only})["losses/critic"])
    figures = learner(name).update({**data, "weight": weight})
    torch.testing.assert_close(figures["losses/critic"], (torch.stack(each) * weight).sum(), rtol=1e-4, atol=1e-5)
    assert len(torch.unique(torch.stack(each))) == ROWS


@pytest.mark.parametrize("name", KINDS)
def test_errors_are_distances_to_the_target(name):
    """In terminal rows the target is the reward."""
    ours, data = learner(name), batch(name)
    with torch.no_grad():
        if "dqn" in name:
            q = ours.net(data["obs"]).mean(2).gather(1, data["action"].unsqueeze(1)).squeeze(1).unsqueeze(0)
        else:
            q = ours.critic(torch.cat([data["obs"], data["action"]], 1)).squeeze(-1)
    ours.update({**data, "weight": torch.ones(ROWS)})
    assert ours.errors.shape == (ROWS,) and not ours.errors.requires_grad
    ends = data["terminated"]
    torch.testing.assert_close(ours.errors[ends], (q - data["reward"]).abs().mean(0)[ends], rtol=1e-4, atol=1e-5)
