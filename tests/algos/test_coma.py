"""COMA: inputs of the critic, policy, targets and losses match the formulas; a team task is learned."""

from __future__ import annotations

import pytest
import torch

from powerband.algos.coma import COMA, all_actions_allowed
from powerband.algos.team_settings import COMAConfig
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec
from powerband.recipes.uav.learner import make_learner
from powerband.recipes.uav.map_net import critic_inputs

T, N, A, K = 5, 3, 4, 6


def spec(agents: int = A, steps: int = T) -> EnvSpec:
    """Returns the spaces of a team without an environment."""
    maps = {"maps": TensorSpec((agents, 7, 11, 11)), "cell": TensorSpec((agents,), torch.int64)}
    return EnvSpec(
        obs={**maps, "state": TensorSpec((4, 11, 11))},
        action=TensorSpec((agents,), torch.int64),
        num_actions=K,
        num_agents=agents,
        max_episode_steps=steps,
    )


def learner(counterfactual: bool = True, **settings) -> COMA:
    """Creates a small learner with seeded weights."""
    torch.manual_seed(0)
    algo = "coma" if counterfactual else "iac"
    return make_learner(algo, spec(), COMAConfig(**{"width": 8, **settings}), RankContext.single())


def rollout(seed: int = 0) -> dict:
    """Returns a random rollout of one episode per environment."""
    g = torch.Generator().manual_seed(seed)
    action = torch.randint(K, (T, N, A), generator=g)
    ends = torch.zeros(T, N, dtype=torch.bool)
    ends[-1] = True
    return {
        "obs": {
            "maps": torch.rand(T, N, A, 7, 11, 11, generator=g),
            "state": torch.rand(T, N, 4, 11, 11, generator=g),
            "cell": torch.randint(121, (T, N, A), generator=g),
        },
        "action": action,
        "mask": (torch.rand(T, N, A, K, generator=g) < 0.6).scatter(3, action.unsqueeze(3), True),
        "reward": torch.randn(T, N, 1, generator=g).expand(T, N, A).contiguous(),
        "terminated": ends,
        "truncated": torch.zeros_like(ends),
    }


def test_the_critic_observes_the_actions_of_the_other_agents():
    data = rollout()
    data["obs"]["cell"][0, 0] = torch.tensor([7, 7, 30, 7])  # a shared cell shows the last agent
    inputs = critic_inputs(data["obs"], data["action"], K).view(T, N, A, 12, 11, 11)
    for t in range(T):
        for n in range(N):
            for i in range(A):
                plane = torch.zeros(121)
                for j in range(A):
                    if j != i:
                        plane[data["obs"]["cell"][t, n, j]] = (data["action"][t, n, j] + 1) / K
                assert torch.equal(inputs[t, n, i, 11].flatten(), plane), (t, n, i)
    assert torch.equal(inputs[:, :, :, :7], data["obs"]["maps"])
    assert torch.equal(inputs[:, :, :, 7:11], data["obs"]["state"].unsqueeze(2).expand(T, N, A, 4, 11, 11))


def test_targets_are_td_lambda_of_the_target_critic():
    coma, data = learner(), rollout()
    with torch.no_grad():
        coma.critic.output.bias += 5.0  # the target network differs from the critic
    result = coma.targets(data, 0.9, 0.7)
    inputs = critic_inputs(data["obs"], data["action"], K)
    q = coma.target(inputs).view(T, N, A, K).gather(3, data["action"].unsqueeze(3)).squeeze(3)
    returns = torch.zeros(T, N, A)
    following = torch.zeros(N, A)
    for t in reversed(range(T)):
        value = 0 if t == T - 1 else q[t + 1]
        following = data["reward"][t] + 0.9 * ((1 - 0.7) * value + 0.7 * following) * float(t < T - 1)
        returns[t] = following
    torch.testing.assert_close(result["returns"], returns.flatten(1))
    assert result["inputs"].shape == (T, N * A, 12, 11, 11) and result["mask"].shape == (T, N * A, K)


@pytest.mark.parametrize(("counterfactual", "sampled"), [(True, False), (True, True), (False, False)])
def test_losses_match_the_formulas(counterfactual, sampled):
    coma, data = learner(counterfactual, epsilon_start=0.3, sampled_advantage=sampled), rollout()
    batch = {name: values.flatten(0, 1) for name, values in coma.targets(data, 0.9, 0.7).items()}
    values = coma.critic(batch["inputs"]).detach()
    rows = torch.arange(len(values))
    chosen = values[rows, batch["action"]] if counterfactual else values[:, 0]
    loss, _ = coma._critic_loss(batch)
    torch.testing.assert_close(loss, (chosen - batch["returns"]).square().mean())
    logits = coma.actor(batch["inputs"][:, :7])
    policy = (0.7 * logits.softmax(1) + 0.3 / K) * batch["mask"]
    policy = policy / policy.sum(1, keepdim=True)
    baseline = (policy.detach() * values).sum(1) if counterfactual else values[:, 0]
    advantage = (chosen if counterfactual and not sampled else batch["returns"]) - baseline
    loss, _ = coma._actor_loss(batch)
    torch.testing.assert_close(loss, -(advantage * policy[rows, batch["action"]].log()).mean())


@pytest.mark.parametrize(("counterfactual", "sampled"), [(True, False), (True, True), (False, False)])
def test_a_return_is_compared_with_the_critic_before_its_step(counterfactual, sampled):
    coma, data = learner(counterfactual, sampled_advantage=sampled, critic_lr=0.1), rollout()
    batch = {name: values.flatten(0, 1) for name, values in coma.targets(data, 0.9, 0.7).items()}
    before = float(coma._actor_loss(batch)[0].detach())
    figures = coma.update(batch)
    assert (float(figures["losses/actor"]) == pytest.approx(before, abs=1e-5)) is (sampled or not counterfactual)


def test_the_counterfactual_advantage_excludes_the_other_agents():
    """If Q is a sum over the agents, the advantage contains only the part of the agent itself."""
    coma, data = learner(), rollout()
    batch = {name: values.flatten(0, 1) for name, values in coma.targets(data, 0.9, 0.7).items()}
    own = torch.linspace(-1, 1, K)
    others = torch.randn(len(batch["action"]), 1) * 100
    coma._values = lambda critic, inputs: own + others
    _, figures = coma._actor_loss(batch)
    assert float(figures["losses/advantage"]) < 1.0


def test_epsilon_is_annealed_and_the_target_is_copied():
    coma = learner(epsilon_start=0.5, epsilon_end=0.1, epsilon_episodes=4 * N, target_interval=3)
    obs = rollout()["obs"]
    with torch.no_grad():
        coma.critic.output.bias += 1.0
    history = []
    for _ in range(5):
        coma.after_rollout(obs)
        history.append((round(float(coma.epsilon), 4), torch.equal(coma.target.output.bias, coma.critic.output.bias)))
    assert [epsilon for epsilon, _ in history] == [0.4, 0.3, 0.2, 0.1, 0.1]
    assert [same for _, same in history] == [False, False, True, True, True]


def test_exploration_samples_the_policy_and_evaluation_takes_the_mode():
    coma = learner(epsilon_start=0.2)
    obs = {name: values[0] for name, values in rollout()["obs"].items()}
    probability = coma.probability(obs)
    torch.testing.assert_close(probability.sum(-1), torch.ones(N, A))
    assert float(probability.min()) >= 0.2 / K - 1e-6
    action, extras, _ = coma.act(obs, None, explore=False)
    assert torch.equal(action, probability.argmax(-1)) and bool(extras["mask"].all())
    counts = sum(torch.nn.functional.one_hot(coma.act(obs, None, True)[0], K) for _ in range(2000))
    torch.testing.assert_close(counts / 2000, probability, atol=0.06, rtol=0)


def test_unmasked_samples_stay_in_range():
    probability = torch.tensor([[[0.0, 0.5, 0.5, 0.0, 0.0, 0.0]]])
    for noise in (0.0, 0.499, 0.5, 1 - 2**-24):
        action, _ = all_actions_allowed(probability, torch.tensor([[noise]]))
        assert int(action) in (1, 2)


@pytest.mark.parametrize("counterfactual", [True, False])
def test_it_learns_a_task_of_one_step(counterfactual):
    """Each agent's map shows the rewarded action, and the team receives the mean. Random actions earn 1 / 6."""
    torch.manual_seed(0)
    config = COMAConfig(width=32, actor_lr=3e-4, critic_lr=3e-3, epsilon_start=0.3, epsilon_episodes=2_000)
    coma = make_learner("coma" if counterfactual else "iac", spec(2, 1), config, RankContext.single(seed=1))
    rewards = []
    for step in range(50):
        g = torch.Generator().manual_seed(step)
        rewarded = torch.randint(K, (64, 2), generator=g)
        maps = torch.zeros(64, 2, 7, 11, 11)
        for k in range(K):
            maps[:, :, k] = (rewarded == k).float().view(64, 2, 1, 1)
        obs = {"maps": maps, "state": torch.zeros(64, 4, 11, 11), "cell": torch.tensor([[0, 60]]).expand(64, 2)}
        action, extras, _ = coma.act(obs, None, True)
        reward = (action == rewarded).float().mean(1, keepdim=True).expand(64, 2)
        data = {"obs": obs, "action": action, "reward": reward, **extras}
        data = {k: v if k == "obs" else v.unsqueeze(0) for k, v in data.items()}
        data["obs"] = {k: v.unsqueeze(0) for k, v in obs.items()}
        data["terminated"] = torch.ones(1, 64, dtype=torch.bool)
        data["truncated"] = ~data["terminated"]
        batch = {k: v.flatten(0, 1) for k, v in coma.targets(data, 0.99, 0.8).items()}
        for _ in range(4):
            coma.update(batch)
        coma.after_rollout(data["obs"])
        rewards.append(float(reward.mean()))
    assert sum(rewards[:5]) / 5 < 0.3
    assert sum(rewards[-10:]) / 10 > 0.8
