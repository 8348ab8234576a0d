"""FastTD3: projection and updates equal slow references; statistics, exploration, resuming; a bandit is learned."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from powerband.algos.fast_td3 import FastTD3, project
from powerband.algos.settings import FastTD3Config
from powerband.core.errors import ConfigError
from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision
from powerband.core.rank_context import RankContext
from powerband.core.ranks.ranks import Ranks
from powerband.data.types import EnvSpec, TensorSpec

LOW, HIGH = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
SPEC = EnvSpec(TensorSpec((3,)), TensorSpec((2,)), low=LOW, high=HIGH)
SMALL = {"hidden": (16, 16), "critic_hidden": (16,), "atoms": 11}


def learner(spec=SPEC, precision="fp32", **settings) -> FastTD3:
    torch.manual_seed(0)
    return FastTD3(spec, FastTD3Config(**{**SMALL, **settings}), RankContext.single("cpu", precision))


def batch(n=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        "obs": 3 * torch.randn(n, 3, generator=draw) + 1,
        "next_obs": torch.randn(n, 3, generator=draw),
        "action": LOW + (HIGH - LOW) * torch.rand(n, 2, generator=draw),
        "reward": 5 * torch.randn(n, generator=draw),
        "terminated": torch.rand(n, generator=draw) < 0.3,
    }


def slow_projection(probs, reward, discount, atoms):
    """Algorithm 1 of Bellemare et al., row by row and atom by atom."""
    step, result = atoms[1] - atoms[0], torch.zeros_like(probs)
    for row in range(len(probs)):
        for z, atom in enumerate(atoms):
            value = min(max(reward[row] + discount[row] * atom, atoms[0]), atoms[-1])
            at = float((value - atoms[0]) / step)
            low, high = math.floor(at), math.ceil(at)
            if low == high:
                result[row, low] += probs[row, z]
            else:
                result[row, low] += probs[row, z] * (high - at)
                result[row, high] += probs[row, z] * (at - low)
    return result


def test_the_projection_equals_the_reference_and_keeps_probability_and_mean():
    torch.manual_seed(1)
    atoms, probs = torch.linspace(-10, 10, 21), torch.randn(40, 21).softmax(-1)
    reward, discount = torch.randn(40) * 8, torch.rand(40)
    reward[0], discount[0], reward[1], discount[1] = 3.0, 0.0, 100.0, 1.0
    projected = project(probs, reward, discount, atoms)
    torch.testing.assert_close(projected, slow_projection(probs, reward, discount, atoms), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(projected.sum(1), torch.ones(40))
    assert projected[0, 13] == pytest.approx(1) and projected[1, 20] == pytest.approx(1)
    inside = project(probs, torch.full((40,), 0.3), torch.full((40,), 0.9), atoms)
    torch.testing.assert_close(inside @ atoms, 0.3 + 0.9 * (probs @ atoms), rtol=1e-4, atol=1e-4)


def test_update_equals_the_reference():
    ours = learner(actor_lr=1e-2, critic_lr=1e-2, tau=0.1, weight_decay=0.1, value_limit=20.0)
    nets = {name: copy.deepcopy(getattr(ours, name)) for name in ("actor", "critic", "target_actor", "target_critic")}
    actor_adam = torch.optim.AdamW(nets["actor"].parameters(), 1e-2, weight_decay=0.1)
    critic_adam = torch.optim.AdamW(nets["critic"].parameters(), 1e-2, weight_decay=0.1)
    draws, atoms = NoiseSource(0), torch.linspace(-20, 20, 11)
    observations, rewards = torch.zeros(0, 3), torch.zeros(0)
    for number in range(1, 5):
        data = batch(seed=number)
        figures = ours.update(data)
        observations, rewards = torch.cat([observations, data["obs"]]), torch.cat([rewards, data["reward"]])
        std, mean = torch.std_mean(observations, 0, correction=0)
        obs, next_obs = ((data[name] - mean) / std for name in ("obs", "next_obs"))
        reward = data["reward"] / rewards.square().mean().sqrt()
        normal = draws("fast_td3/update", 8).normal(2)
        with torch.no_grad():
            noise = (0.2 * normal).clamp(-0.5, 0.5)
            next_action = (torch.tanh(nets["target_actor"](next_obs)) + noise).clamp(-1, 1)
            probs = nets["target_critic"](torch.cat([next_obs, next_action], 1)).softmax(-1)
            best = torch.stack([probs[int(p[1] @ atoms < p[0] @ atoms), row] for row, p in enumerate(probs.unbind(1))])
            target = slow_projection(best, reward, 0.99 * (~data["terminated"]).float(), atoms)
        inputs = torch.cat([obs, (data["action"] - (HIGH + LOW) / 2) / ((HIGH - LOW) / 2)], 1)
        loss = sum(F.cross_entropy(logits, target) for logits in nets["critic"](inputs))
        critic_adam.zero_grad()
        loss.backward()
        critic_adam.step()
        torch.testing.assert_close(figures["losses/critic"], loss.detach(), rtol=1e-4, atol=1e-5)
        assert ("losses/actor" in figures) == (number % 2 == 0)
        if number % 2 == 0:
            probs = nets["critic"](torch.cat([obs, torch.tanh(nets["actor"](obs))], 1)).softmax(-1)
            actor_loss = -torch.minimum(probs[0] @ atoms, probs[1] @ atoms).mean()
            actor_adam.zero_grad()
            actor_loss.backward()
            actor_adam.step()
            torch.testing.assert_close(figures["losses/actor"], actor_loss.detach(), rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            for name in ("actor", "critic") if number % 2 == 0 else ("critic",):
                pairs = zip(nets[f"target_{name}"].parameters(), nets[name].parameters(), strict=True)
                for old, new in pairs:
                    old.lerp_(new, 0.1)
    for name, net in nets.items():
        for mine, plain in zip(getattr(ours, name).parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-5, msg=name)


def test_rewards_of_any_size_give_the_same_critics():
    one, other = learner(), learner()
    for seed in range(3):
        one.update(batch(seed=seed))
        other.update({**batch(seed=seed), "reward": 1000 * batch(seed=seed)["reward"]})
    torch.testing.assert_close(one.critic_adam.flat, other.critic_adam.flat, rtol=1e-4, atol=1e-6)
    raw = learner(normalize_reward=False)
    raw.update(batch())
    assert raw.reward_norm.count == 0 and raw._reward_factor() == 1
    normalised = learner()
    normalised.update(batch())
    raw.load_state_dict(copy.deepcopy(normalised.state_dict()))
    assert raw._reward_factor() == 1 != normalised._reward_factor(), "a resume may switch the option off"


def test_resuming_between_two_actor_updates_repeats_the_bits():
    one = learner()
    one.update(batch(seed=1))
    two = learner()
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in (2, 3):
        first, second = one.update(batch(seed=seed)), two.update(batch(seed=seed))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(one.act(batch()["obs"], None, True)[0], two.act(batch()["obs"], None, True)[0])


def test_the_policy_contains_its_statistics():
    ours = learner()
    obs = batch()["obs"]
    before = ours.act(obs, None, False)[0]
    ours.obs_norm.update_statistics(10 * obs)
    assert not torch.equal(ours.act(obs, None, False)[0], before)
    assert torch.equal(ours.policy_state()["obs_norm.mean"], ours.obs_norm.mean)
    assert "obs_norm.mean" not in learner(normalize_obs=False).policy_state()


def test_every_environment_explores_with_its_own_scale_on_any_number_of_ranks():
    ours = learner(min_noise=0.1, max_noise=0.3)
    scales = ours._noise_scales(64)
    assert scales.min() < 0.11 and scales.max() > 0.29 and len(scales.unique()) == 64
    halves = []
    for rank in range(2):
        context = RankContext(Ranks(rank=rank, world_size=2), Precision("fp32"), NoiseSource(0, "cpu", rank))
        halves.append(FastTD3(SPEC, ours.config, context)._noise_scales(32))
    assert torch.equal(torch.cat(halves), scales)
    obs = torch.zeros(64, 3)
    noisy = torch.stack([ours.act(obs, None, True)[0][:, 0] for _ in range(300)])
    quiet = ours.act(obs, None, False)[0]
    assert torch.equal(quiet, ours.act(obs, None, False)[0])
    assert bool(((noisy >= LOW[0]) & (noisy <= HIGH[0])).all())
    spread = torch.corrcoef(torch.stack([noisy.std(0), scales.squeeze(1)]))[0, 1]
    assert spread > 0.95


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_learns_a_bandit(precision):
    """Episodes of one step: the reward is minus the squared distance to the observed point."""
    spec = EnvSpec(TensorSpec((1,)), TensorSpec((1,)), low=torch.tensor([-2.0]), high=torch.tensor([2.0]))
    sizes = {"hidden": (32, 32), "critic_hidden": (32, 32), "atoms": 51, "value_limit": 4.0}
    ours = learner(spec, precision, **sizes, actor_lr=3e-3, critic_lr=3e-3)
    before = error(ours)
    for _ in range(400):
        obs = torch.rand(64, 1) * 2 - 1
        action, _, _ = ours.act(obs, None, True)
        reward = -4 * (action - obs).square().squeeze(-1)
        done = torch.ones(64, dtype=torch.bool)
        ours.update({"obs": obs, "next_obs": obs, "action": action, "reward": reward, "terminated": done})
    assert error(ours) < 0.2 < before


def error(ours: FastTD3) -> float:
    obs = torch.linspace(-1, 1, 200).unsqueeze(1)
    return float((ours.act(obs, None, False)[0] - obs).abs().mean())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.0}, "gamma=1.0: 1 is not below 1"),
        ({"min_noise": 0.5}, "min_noise=0.5 is above fast_td3.max_noise=0.4"),
        ({"atoms": 1}, "atoms=1"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        FastTD3Config(**settings)


def test_unsupported_actions_are_refused():
    for spec in (
        EnvSpec(TensorSpec((3,)), TensorSpec((), torch.int64), num_actions=3),
        EnvSpec(TensorSpec((3,)), TensorSpec((1,)), low=torch.tensor([-math.inf]), high=torch.tensor([1.0])),
    ):
        with pytest.raises(ConfigError, match="Write algo=ppo"):
            learner(spec)
