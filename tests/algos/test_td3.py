"""TD3: updates equal those of a reference; delayed actor, resuming; a bandit is learned."""

import copy
import math

import pytest
import torch

from powerband.algos.settings import TD3Config
from powerband.algos.td3 import TD3
from powerband.core.errors import ConfigError
from powerband.core.noise import NoiseSource
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec

LOW, HIGH = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
SPEC = EnvSpec(TensorSpec((3,)), TensorSpec((2,)), low=LOW, high=HIGH)


def learner(spec=SPEC, precision="fp32", **settings) -> TD3:
    torch.manual_seed(0)
    return TD3(spec, TD3Config(**{"hidden": (16, 16), **settings}), RankContext.single("cpu", precision))


def batch(n=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(n, 3, generator=draw),
        "next_obs": torch.randn(n, 3, generator=draw),
        "action": LOW + (HIGH - LOW) * torch.rand(n, 2, generator=draw),
        "reward": torch.randn(n, generator=draw),
        "terminated": torch.rand(n, generator=draw) < 0.3,
    }


def test_a_longer_window_raises_the_discount_to_the_power_of_its_steps():
    one, other, data = learner(), learner(gamma=0.99**3), batch()
    first = one.update({**data, "steps": torch.full((8,), 3)})
    second = other.update(data)
    torch.testing.assert_close(first["losses/critic"], second["losses/critic"])
    assert not torch.equal(first["losses/critic"], learner().update(data)["losses/critic"])


def test_update_equals_the_reference():
    ours = learner(actor_lr=1e-2, critic_lr=1e-2, tau=0.1)
    nets = {name: copy.deepcopy(getattr(ours, name)) for name in ("actor", "critic", "target_actor", "target_critic")}
    actor_adam = torch.optim.Adam(nets["actor"].parameters(), 1e-2)
    critic_adam = torch.optim.Adam(nets["critic"].parameters(), 1e-2)
    draws = NoiseSource(0)
    centre, scale = (HIGH + LOW) / 2, (HIGH - LOW) / 2
    for number in range(1, 5):
        data = batch(seed=number)
        figures = ours.update(data)
        normal = draws("td3/update", 8).normal(2)
        with torch.no_grad():
            noise = (0.2 * normal).clamp(-0.5, 0.5)
            next_action = (torch.tanh(nets["target_actor"](data["next_obs"])) + noise).clamp(-1, 1)
            q = nets["target_critic"](torch.cat([data["next_obs"], next_action], 1)).squeeze(-1)
            target = data["reward"] + 0.99 * torch.minimum(q[0], q[1]) * (~data["terminated"])
        inputs = torch.cat([data["obs"], (data["action"] - centre) / scale], 1)
        q = nets["critic"](inputs).squeeze(-1)
        loss = (q[0] - target).square().mean() + (q[1] - target).square().mean()
        critic_adam.zero_grad()
        loss.backward()
        critic_adam.step()
        torch.testing.assert_close(figures["losses/critic"], loss.detach())
        assert ("losses/actor" in figures) == (number % 2 == 0)
        if number % 2 == 0:
            action = torch.tanh(nets["actor"](data["obs"]))
            actor_loss = -nets["critic"](torch.cat([data["obs"], action], 1))[0].mean()
            actor_adam.zero_grad()
            actor_loss.backward()
            actor_adam.step()
            torch.testing.assert_close(figures["losses/actor"], actor_loss.detach())
            with torch.no_grad():
                for name in ("actor", "critic"):
                    pairs = zip(nets[f"target_{name}"].parameters(), nets[name].parameters(), strict=True)
                    for old, new in pairs:
                        old.lerp_(new, 0.1)
    for name, net in nets.items():
        for mine, plain in zip(getattr(ours, name).parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-6)


def test_resuming_between_two_actor_updates_repeats_the_bits():
    one = learner()
    one.update(batch(seed=1))
    state = copy.deepcopy(one.state_dict())
    two = learner()
    two.load_state_dict(state)
    for seed in (2, 3):
        first, second = one.update(batch(seed=seed)), two.update(batch(seed=seed))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_exploration_noise_is_within_the_bounds():
    ours, obs = learner(exploration_noise=5.0), torch.randn(64, 3)
    noisy, quiet = ours.act(obs, None, True)[0], ours.act(obs, None, False)[0]
    assert bool(((noisy >= LOW) & (noisy <= HIGH)).all()) and not torch.equal(noisy, quiet)
    assert torch.equal(quiet, ours.act(obs, None, False)[0])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_learns_a_bandit(precision):
    """Episodes of one step: the reward is minus the squared distance to the observed point."""
    spec = EnvSpec(TensorSpec((1,)), TensorSpec((1,)), low=torch.tensor([-2.0]), high=torch.tensor([2.0]))
    ours = learner(spec, precision, hidden=(32, 32), actor_lr=3e-3, critic_lr=3e-3, exploration_noise=0.3)
    before = error(ours)
    for _ in range(500):
        obs = torch.rand(64, 1) * 2 - 1
        action, _, _ = ours.act(obs, None, True)
        reward = -4 * (action - obs).square().squeeze(-1)
        done = torch.ones(64, dtype=torch.bool)
        ours.update({"obs": obs, "next_obs": obs, "action": action, "reward": reward, "terminated": done})
    assert error(ours) < 0.15 < before


def error(ours: TD3) -> float:
    obs = torch.linspace(-1, 1, 200).unsqueeze(1)
    return float((ours.act(obs, None, False)[0] - obs).abs().mean())


def test_unsupported_actions_are_refused():
    for spec in (
        EnvSpec(TensorSpec((3,)), TensorSpec((), torch.int64), num_actions=3),
        EnvSpec(TensorSpec((3,)), TensorSpec((1,)), low=torch.tensor([-math.inf]), high=torch.tensor([1.0])),
    ):
        with pytest.raises(ConfigError, match="Write algo=ppo"):
            learner(spec)
