"""Fused SAC: losses, gradients, parameters and draws equal those of PyTorch; updates repeat their bits."""

from functools import partial

import pytest
import torch

from algos.fused.pairs import ROWS, batch, make_learner, make_pair
from powerband.algos.sac import SAC
from powerband.algos.settings import SACConfig

learner = partial(make_learner, SAC, SACConfig)
pair = partial(make_pair, SAC, SACConfig)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy_interval": 2, "target_interval": 3, "actor_lr": 1e-3, "critic_lr": 3e-3},
        {"hidden": (16,), "obs_scale": 3.0, "target_entropy": -1.0, "initial_alpha": 0.1},
        {"hidden": (16, 8, 12)},
        {"hidden": (16, 8, 12), "layer_norm": True},
    ],
    ids=str,
)
def test_losses_gradients_and_parameters_equal_those_of_autograd(options):
    plain, fused = pair(**options)
    for number in range(40):
        data = batch(number)
        expected, figures = plain.update(data), fused.update(data)
        assert expected.keys() == figures.keys()
        for name, value in expected.items():
            torch.testing.assert_close(figures[name], value, rtol=1e-4, atol=1e-5, msg=f"{name}, update {number}")
        for own, other in ((fused.critic_adam, plain.critic_adam), (fused.actor_adam, plain.actor_adam)):
            assert (own.grad - other.grad).norm() <= 1e-4 * other.grad.norm(), f"update {number}"
    for name in ("actor", "critic", "target_critic", "temperature"):
        for own, other in zip(getattr(fused, name).parameters(), getattr(plain, name).parameters(), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5, msg=name)
    assert fused.noise.state_dict() == plain.noise.state_dict()


def test_gradients_of_a_saturated_policy_equal_those_of_autograd():
    """Large outputs reach both bounds of the log standard deviation, and actions at the ends of their range."""
    plain, fused = pair()
    with torch.no_grad():
        for each in (plain, fused):
            each.actor_adam.flat.mul_(4)
    data = batch(scale=5.0)
    log_std = plain.actor(data["obs"])[:, 3:]
    assert (log_std > 2).any() and (log_std < -20).any() and (log_std.abs() < 2).any()
    plain.update(data), fused.update(data)
    for own, other in ((fused.critic_adam, plain.critic_adam), (fused.actor_adam, plain.actor_adam)):
        assert (own.grad - other.grad).norm() < 1e-4 * other.grad.norm()


@pytest.mark.parametrize("larger", [0, 1])
@pytest.mark.parametrize("layer_norm", [True, False])
def test_gradients_equal_those_of_autograd_if_one_critic_is_the_smaller_one_in_every_row(larger, layer_norm):
    plain, fused = pair(layer_norm=layer_norm)
    with torch.no_grad():
        for each in (plain, fused):
            each.critic.biases[-1][larger].add_(100.0)
    data = batch()
    plain.update(data), fused.update(data)
    assert plain.actor_adam.grad.norm() > 0
    assert (fused.actor_adam.grad - plain.actor_adam.grad).norm() < 1e-4 * plain.actor_adam.grad.norm()


@pytest.mark.parametrize("explore", [True, False])
def test_actions_equal_those_of_pytorch_and_use_the_same_draws(explore):
    plain, fused = pair()
    for seed in range(3):
        obs = batch(seed)["obs"]
        (action, _, _), (own, _, _) = plain.act(obs, None, explore), fused.act(obs, None, explore)
        torch.testing.assert_close(own, action, rtol=1e-5, atol=1e-5)
    assert fused.noise.state_dict() == plain.noise.state_dict()


def test_halves_of_the_environments_draw_the_numbers_of_all():
    together, halves = learner(True), learner(True)
    obs = batch()["obs"][:8]
    for _ in range(2):
        expected, parts = together.act(obs, None, True)[0], []
        for rows in (slice(0, 3), slice(3, 8)):
            with halves.noise.row_slice(rows, 8):
                parts.append(halves.act(obs[rows], None, True)[0])
        torch.testing.assert_close(torch.cat(parts), expected)


def test_updates_repeat_their_bits_and_average_both_gradients():
    first, second = learner(True), learner(True)
    averaged: list[int] = []
    second.critic_adam.average = second.actor_adam.average = lambda grad: averaged.append(grad.numel())
    for number in range(5):
        first.update(batch(number)), second.update(batch(number))
    assert torch.equal(first.actor_adam.flat, second.actor_adam.flat)
    assert torch.equal(first.critic_adam.flat, second.critic_adam.flat)
    assert averaged == [second.critic_adam.grad.numel(), second.actor_adam.grad.numel()] * 5


@pytest.mark.parametrize("name", ["obs", "action", "reward", "next_obs"])
def test_values_that_are_not_finite_are_not_hidden(name):
    data = batch()
    data[name].view(ROWS, -1)[3, 0] = torch.nan
    data["terminated"][:] = False
    assert not torch.isfinite(torch.stack(list(learner(True).update(data).values()))).all()
