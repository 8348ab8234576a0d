"""Fused TD3: losses, gradients, errors and actions equal those of PyTorch; updates repeat their bits."""

from functools import partial

import pytest
import torch

from algos.fused.pairs import ROWS, batch, make_learner, make_pair
from powerband.algos.settings import TD3Config
from powerband.algos.td3 import TD3

learner = partial(make_learner, TD3, TD3Config)
pair = partial(make_pair, TD3, TD3Config)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy_interval": 1, "tau": 0.1, "actor_lr": 1e-3, "critic_lr": 3e-3},
        {"hidden": (16,), "target_noise": 0.9, "target_noise_clip": 1.5},
        {"hidden": (16, 8, 12)},
    ],
    ids=str,
)
def test_losses_gradients_and_parameters_equal_those_of_autograd(options, weighted):
    plain, fused = pair(**options)
    for number in range(40):
        data = batch(number)
        if weighted:
            data["weight"] = torch.rand(ROWS, generator=torch.Generator().manual_seed(number))
        expected, figures = plain.update(data), fused.update(data)
        assert expected.keys() == figures.keys()
        for name, value in expected.items():
            torch.testing.assert_close(figures[name], value, rtol=1e-4, atol=1e-5, msg=f"{name}, update {number}")
        torch.testing.assert_close(fused.errors, plain.errors, rtol=1e-4, atol=1e-5)
        for own, other in ((fused.critic_adam, plain.critic_adam), (fused.actor_adam, plain.actor_adam)):
            assert (own.grad - other.grad).norm() <= 1e-4 * other.grad.norm() + 1e-9, f"update {number}"
    for name in ("actor", "critic", "target_actor", "target_critic"):
        for own, other in zip(getattr(fused, name).parameters(), getattr(plain, name).parameters(), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5, msg=name)
    assert fused.noise.state_dict() == plain.noise.state_dict()


@pytest.mark.parametrize("explore", [True, False])
def test_actions_equal_those_of_pytorch_and_use_the_same_draws(explore):
    plain, fused = pair()
    for seed in range(3):
        obs = batch(seed, scale=5.0)["obs"]  # saturates some actions
        (action, _, _), (own, _, _) = plain.act(obs, None, explore), fused.act(obs, None, explore)
        torch.testing.assert_close(own, action, rtol=1e-5, atol=1e-5)
    assert fused.noise.state_dict() == plain.noise.state_dict()


def test_updates_repeat_their_bits_and_average_both_gradients():
    first, second = learner(True), learner(True)
    averaged: list[int] = []
    second.critic_adam.average = second.actor_adam.average = lambda grad: averaged.append(grad.numel())
    for number in range(5):
        first.update(batch(number)), second.update(batch(number))
    assert torch.equal(first.actor_adam.flat, second.actor_adam.flat)
    assert torch.equal(first.critic_adam.flat, second.critic_adam.flat)
    sizes = [each.grad.numel() for each in (second.critic_adam, second.critic_adam, second.actor_adam)]
    assert averaged == 2 * sizes + sizes[:1], "the actor is updated after every second update of the critics"


@pytest.mark.parametrize("name", ["obs", "action", "reward", "next_obs"])
def test_values_that_are_not_finite_are_not_hidden(name):
    data = batch()
    data[name].view(ROWS, -1)[3, 0] = torch.nan
    data["terminated"][:] = False
    assert not torch.isfinite(torch.stack(list(learner(True).update(data).values()))).all()
