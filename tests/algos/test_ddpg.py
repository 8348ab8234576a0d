"""DDPG and BiCNet: updates equal those of a slow reference; exploration; a bandit is learned."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from powerband.algos.ddpg import DDPG
from powerband.algos.settings import DDPGConfig
from powerband.core.noise import NoiseSource
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec
from powerband.recipes.snakes.nets.team import TeamMLP

SPEC = EnvSpec(TensorSpec((3, 5)), TensorSpec((3,), torch.int64), num_actions=4, num_agents=3)


def learner(precision="fp32", spec=SPEC, seed=0, **config) -> DDPG:
    torch.manual_seed(seed)
    settings = DDPGConfig(**{"hidden": 16, **config})
    return DDPG(
        spec,
        settings,
        RankContext.single("cpu", precision, seed),
        lambda inputs, outputs: TeamMLP(inputs, settings.hidden, outputs, settings.communicate),
    )


def batch(n=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(n, 3, 5, generator=draw),
        "next_obs": torch.randn(n, 3, 5, generator=draw),
        "action_probs": torch.rand(n, 3, 4, generator=draw).softmax(-1),
        "reward": torch.randn(n, 3, generator=draw),
        "terminated": torch.rand(n, generator=draw) < 0.3,
    }


@pytest.mark.parametrize("communicate", ["none", "lstm"])
def test_update_equals_the_reference(communicate):
    ours = learner(communicate=communicate, actor_lr=1e-2, critic_lr=1e-2, tau=0.1, logit_penalty=0.3)
    actor, critic = copy.deepcopy(ours.actor), copy.deepcopy(ours.critic)
    target_actor, target_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    actor_adam = torch.optim.Adam(actor.parameters(), 1e-2)
    critic_adam = torch.optim.Adam(critic.parameters(), 1e-2)
    for seed in range(4):
        data = batch(seed=seed)
        figures = ours.update(data)
        with torch.no_grad():
            next_probs = F.softmax(target_actor(data["next_obs"]), -1)
            next_q = target_critic(torch.cat([data["next_obs"], next_probs], -1)).squeeze(-1)
            y = data["reward"].clone()
            for row in range(8):
                if not data["terminated"][row]:
                    y[row] += 0.95 * next_q[row]
        critic_loss = ((critic(torch.cat([data["obs"], data["action_probs"]], -1)).squeeze(-1) - y) ** 2).mean()
        critic_adam.zero_grad()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
        critic_adam.step()
        logits = actor(data["obs"])
        actor_loss = -critic(torch.cat([data["obs"], F.softmax(logits, -1)], -1)).mean() + 0.3 * (logits**2).mean()
        actor_adam.zero_grad()
        actor_loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
        actor_adam.step()
        for slow, fast in ((target_actor, actor), (target_critic, critic)):
            for s, f in zip(slow.parameters(), fast.parameters(), strict=True):
                s.data.copy_(0.9 * s.data + 0.1 * f.data)
        torch.testing.assert_close(figures["losses/critic"], critic_loss.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(figures["losses/actor"], actor_loss.detach(), rtol=1e-4, atol=1e-5)
    for mine, theirs in ((ours.actor, actor), (ours.critic, critic), (ours.target_critic, target_critic)):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_exploration():
    ours = learner(epsilon=1.0, epsilon_decay=0.5)
    obs = torch.randn(4000, 3, 5)
    action, extras, carry = ours.act(obs, None, explore=True)
    probs = extras["action_probs"]
    assert carry is None and action.shape == (4000, 3) and action.dtype == torch.int64
    torch.testing.assert_close(probs.sum(-1), torch.ones(4000, 3))
    assert (probs.mean((0, 1)) - 0.25).abs().max() < 0.01 and probs.std() > 0.1
    chosen = probs.gather(-1, action.unsqueeze(-1))
    assert abs(chosen.mean() - probs.square().sum(-1).mean()) < 0.01  # moves are sampled from their vectors
    assert ours.epsilon == 0.5**4000  # one factor for each environment
    _, extras, _ = ours.act(obs, None, explore=True)
    torch.testing.assert_close(extras["action_probs"], F.softmax(ours.actor(obs), -1).detach())
    greedy, extras, _ = ours.act(obs, None, explore=False)
    assert torch.equal(greedy, extras["action_probs"].argmax(-1))


def test_epsilon_is_drawn_once_per_environment():
    ours = learner(epsilon=0.5, epsilon_decay=1.0)
    obs = torch.randn(2000, 3, 5)
    _, extras, _ = ours.act(obs, None, explore=True)
    uniform = (extras["action_probs"] - F.softmax(ours.actor(obs), -1)).abs().amax(-1) > 1e-5
    assert torch.equal(uniform.any(1), uniform.all(1)) and abs(uniform.float().mean() - 0.5) < 0.04


def test_agents_communicate_only_with_lstm():
    obs = torch.randn(2, 3, 5)
    other = obs.clone()
    other[:, 2] += 1
    for communicate, moved in (("none", False), ("lstm", True)):
        net = learner(communicate=communicate).actor
        assert (net(obs)[:, 0] != net(other)[:, 0]).any().item() is moved


def test_state_round_trip_continues_bit_for_bit():
    first, second = learner(), learner(seed=1)
    second.noise.seed = 0
    for seed in range(3):
        first.update(batch(seed=seed))
        first.act(torch.randn(4, 3, 5), None, True)
    second.noise = NoiseSource(0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    obs = torch.randn(4, 3, 5)
    assert torch.equal(first.act(obs, None, True)[0], second.act(obs, None, True)[0])
    for side in (first, second):
        side.update(batch(seed=9))
    for a, b in zip(first.actor.parameters(), second.actor.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_learns_a_bandit(precision):
    """One-step episodes: the observation of each agent encodes the rewarded move."""
    spec = EnvSpec(TensorSpec((2, 4)), TensorSpec((2,), torch.int64), num_actions=4, num_agents=2)
    ours = learner(precision, spec, hidden=64, actor_lr=2e-3, critic_lr=5e-3, epsilon_decay=1.0, epsilon=0.3)
    for _ in range(250):
        right = torch.randint(4, (64, 2))
        obs = F.one_hot(right, 4).float()
        _, extras, _ = ours.act(obs, None, True)
        reward = extras["action_probs"].gather(-1, right.unsqueeze(-1)).squeeze(-1)
        terminated = torch.ones(64, dtype=torch.bool)
        ours.update({"obs": obs, "next_obs": obs, "reward": reward, "terminated": terminated, **extras})
    right = torch.randint(4, (200, 2))
    action, _, _ = ours.act(F.one_hot(right, 4).float(), None, False)
    assert (action == right).float().mean() > 0.95


def test_refusals():
    with pytest.raises(ValueError, match="Write algo=ppo"):
        learner(spec=EnvSpec(TensorSpec((5,)), TensorSpec((2,))))
    with pytest.raises(ValueError, match="several agents"):
        learner(spec=EnvSpec(TensorSpec((5,)), TensorSpec((), torch.int64), num_actions=3), communicate="lstm")
