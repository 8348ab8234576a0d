"""MAPPO: inputs of the critic, advantages and losses match the formulas; a team task is learned."""

from __future__ import annotations

import pytest
import torch

from algos.test_coma import A, K, N, T, rollout, spec
from powerband.algos.mappo import MAPPO, masked_log_policy
from powerband.algos.team_settings import MAPPOConfig
from powerband.core.rank_context import RankContext
from powerband.recipes.uav.learner import make_learner
from powerband.recipes.uav.map_net import state_inputs


def learner(agents: int = A, steps: int = T, **settings) -> MAPPO:
    """Creates a small learner with seeded weights."""
    torch.manual_seed(0)
    config = MAPPOConfig(**{"width": 8, **settings})
    mappo = make_learner("mappo", spec(agents, steps), config, RankContext.single(seed=1))
    assert isinstance(mappo, MAPPO)
    return mappo


def collected(mappo: MAPPO) -> dict:
    """Returns a random rollout with the log-probabilities of its actions under the masked policy of `mappo`."""
    data = rollout()
    obs = {name: values.flatten(0, 1) for name, values in data["obs"].items()}
    probability = mappo.probability(obs).view(T, N, A, K) * data["mask"]
    policy = probability / probability.sum(-1, keepdim=True)
    data["log_prob"] = policy.gather(3, data["action"].unsqueeze(3)).squeeze(3).log()
    return data


def test_the_critic_observes_the_maps_of_the_agent_and_the_state_of_the_team():
    obs = rollout()["obs"]
    inputs = state_inputs(obs).view(T, N, A, 11, 11, 11)
    assert torch.equal(inputs[:, :, :, :7], obs["maps"])
    assert torch.equal(inputs[:, :, :, 7:], obs["state"].unsqueeze(2).expand(T, N, A, 4, 11, 11))
    assert not state_inputs(obs, empty=1)[:, -1].any()


def test_targets_are_generalised_advantages_of_the_critic():
    mappo = learner()
    data = collected(mappo)
    result = mappo.targets(data, 0.9, 0.7)
    values = mappo.critic(state_inputs(data["obs"])).view(T, N, A).detach()
    advantages, following = torch.zeros(T, N, A), torch.zeros(N, A)
    for t in reversed(range(T)):
        next_value = values[t + 1] if t < T - 1 else 0
        following = data["reward"][t] + 0.9 * next_value - values[t] + 0.9 * 0.7 * following * float(t < T - 1)
        advantages[t] = following
    torch.testing.assert_close(result["returns"], (advantages + values).flatten(1))
    normalized = (advantages - advantages.mean()) / advantages.std(correction=0)
    torch.testing.assert_close(result["advantages"], normalized.flatten(1))
    assert result["inputs"].shape == (T, N * A, 11, 11, 11) and result["mask"].shape == (T, N * A, K)


def test_losses_match_the_formulas():
    mappo = learner(entropy_coef=0.1)
    data = collected(mappo)
    batch = {name: values.flatten(0, 1) for name, values in mappo.targets(data, 0.9, 0.7).items()}
    with torch.no_grad():
        mappo.actor.output.weight.add_(torch.linspace(0, 2, K).unsqueeze(1))  # ratios differ from 1, some are clipped
    values = mappo.critic(batch["inputs"]).squeeze(1)
    loss, _ = mappo._critic_loss(batch)
    torch.testing.assert_close(loss, (values - batch["returns"]).square().mean())
    terms, entropies, clipped = [], [], 0
    for row in range(len(batch["action"])):
        allowed = mappo.actor(batch["inputs"][row : row + 1, :7])[0].softmax(0) * batch["mask"][row]
        policy = allowed / allowed.sum()
        ratio = policy[batch["action"][row]] / batch["log_prob"][row].exp()
        advantage = batch["advantages"][row]
        terms.append(min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
        entropies.append(-(policy[policy > 0] * policy[policy > 0].log()).sum())
        clipped += bool(abs(float(ratio.detach()) - 1) > 0.2)
    loss, figures = mappo._actor_loss(batch)
    torch.testing.assert_close(loss, -torch.stack(terms).mean() - 0.1 * torch.stack(entropies).mean())
    assert float(figures["losses/clipped"]) == pytest.approx(clipped / len(terms)) and clipped


def test_the_first_update_of_a_rollout_has_ratios_of_one():
    mappo = learner()
    obs = {name: values[0] for name, values in rollout()["obs"].items()}
    action, extras, _ = mappo.act(obs, None, explore=True)
    log_policy = masked_log_policy(mappo._logits(obs), extras["mask"])
    torch.testing.assert_close(extras["log_prob"], log_policy.gather(2, action.unsqueeze(2)).squeeze(2))


def test_excluded_actions_have_no_probability_and_finite_logarithms():
    logits = torch.tensor([[200.0, -200.0, 0.0]])
    log_policy = masked_log_policy(logits, torch.tensor([[False, True, False]]))
    assert log_policy.isfinite().all()
    assert log_policy.exp().tolist() == [[0.0, 1.0, 0.0]]


def test_exploration_samples_the_policy_and_evaluation_takes_the_mode():
    mappo = learner()
    obs = {name: values[0] for name, values in rollout()["obs"].items()}
    probability = mappo.probability(obs)
    assert torch.equal(mappo.act(obs, None, explore=False)[0], probability.argmax(-1))
    counts = sum(torch.nn.functional.one_hot(mappo.act(obs, None, True)[0], K) for _ in range(2000))
    torch.testing.assert_close(counts / 2000, probability, atol=0.06, rtol=0)


def test_it_learns_a_task_of_one_step():
    """Each agent's map shows the rewarded action, and the team receives the mean. Random actions earn 1 / 6."""
    mappo = learner(2, 1, width=32, actor_lr=1e-3, critic_lr=3e-3)
    rewards = []
    for step in range(40):
        g = torch.Generator().manual_seed(step)
        rewarded = torch.randint(K, (64, 2), generator=g)
        maps = torch.nn.functional.one_hot(rewarded, 7).float()[..., None, None].expand(64, 2, 7, 11, 11)
        obs = {"maps": maps, "state": torch.zeros(64, 4, 11, 11)}
        action, extras, _ = mappo.act(obs, None, True)
        reward = (action == rewarded).float().mean(1, keepdim=True).expand(64, 2)
        data = {"action": action, "reward": reward, **extras, "terminated": torch.ones(64, dtype=torch.bool)}
        data["truncated"] = ~data["terminated"]
        data = {name: values.unsqueeze(0) for name, values in data.items()}
        data["obs"] = {name: values.unsqueeze(0) for name, values in obs.items()}
        batch = {name: values.flatten(0, 1) for name, values in mappo.targets(data, 0.99, 0.8).items()}
        for _ in range(4):
            mappo.update(batch)
        rewards.append(float(reward.mean()))
    assert sum(rewards[:5]) / 5 < 0.3
    assert sum(rewards[-10:]) / 10 > 0.8
