"""Tests of the learning rate of a learner with several optimisers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from powerband.core.optim.flat_adam import FlatAdam
from powerband.core.optim.learning_rate import LearnerLr
from powerband.core.optim.precision import Precision


class TwoOptimisers:
    lr = LearnerLr("actor_adam", "critic_adam")

    def __init__(self) -> None:
        self.actor_adam = FlatAdam([nn.Linear(2, 2)], 1e-3, precision=Precision())
        self.critic_adam = FlatAdam([nn.Linear(2, 2)], 4e-3, precision=Precision())


def test_an_assignment_keeps_the_ratio_of_the_learning_rates() -> None:
    learner = TwoOptimisers()
    assert learner.lr == 1e-3
    learner.lr = 5e-4
    assert (learner.actor_adam.lr, learner.critic_adam.lr) == pytest.approx((5e-4, 2e-3))


def test_the_ratio_survives_a_learning_rate_of_zero() -> None:
    learner = TwoOptimisers()
    learner.lr = 0.0
    learner.lr = 2e-3
    assert (learner.actor_adam.lr, learner.critic_adam.lr) == pytest.approx((2e-3, 8e-3))


def test_the_step_of_every_optimiser_uses_the_assigned_rate() -> None:
    learner = TwoOptimisers()
    learner.lr = 0.0
    for adam in (learner.actor_adam, learner.critic_adam):
        before = adam.flat.detach().clone()
        adam.grad.fill_(1.0)
        adam.apply()
        assert torch.equal(adam.flat, before)
