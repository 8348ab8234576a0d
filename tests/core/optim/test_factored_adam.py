"""FactoredAdam: the updates of Adafactor with a given learning rate, and a small state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from powerband.core.optim.accelerate import AcceleratedAdam
from powerband.core.optim.factored_adam import FactoredAdam
from powerband.core.optim.precision import Precision
from powerband.core.ranks.ranks import Ranks


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(3, 5, 3), nn.Flatten(), nn.Linear(10, 7))


def test_updates_are_those_of_adafactor() -> None:
    adafactor = pytest.importorskip("transformers.optimization").Adafactor
    own, other = net(), net()
    optimizers = (
        FactoredAdam(own.parameters(), 0.01, weight_decay=0.1),
        adafactor(other.parameters(), 0.01, weight_decay=0.1, scale_parameter=False, relative_step=False),
    )
    for step in range(20):
        inputs = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(step))
        for each, optimizer in zip((own, other), optimizers, strict=True):
            each.zero_grad()
            (each(inputs).square().sum() * 10 ** (step % 3)).backward()
            optimizer.step()
    for mine, theirs in zip(own.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_the_state_is_small_and_resumes_exactly() -> None:
    pytest.importorskip("accelerate")

    def make(seed: int = 0) -> AcceleratedAdam:
        return AcceleratedAdam(net(), 0.01, ranks=Ranks(), precision=Precision("fp32"), factored=True)

    def train(adam: AcceleratedAdam, steps: range) -> None:
        for step in steps:
            inputs = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(step))
            adam.step(adam.forward(inputs).square().sum())

    whole, half, resumed = make(), make(), make()
    train(whole, range(6))
    train(half, range(3))
    resumed.load_weights(half.weights())
    resumed.load_state_dict(half.state_dict())
    train(resumed, range(3, 6))
    assert all(torch.equal(value, resumed.weights()[name]) for name, value in whole.weights().items())
    numbers = sum(value.numel() for state in whole.state_dict().values() for value in state.values())
    assert numbers < 0.5 * sum(parameter.numel() for parameter in whole.net.parameters())
