"""SAC: updates equal those of a slow reference; bounds and units; a bandit is learned."""

import copy
import math

import pytest
import torch
from torch import distributions

from contexts import simulated_context
from powerband.algos.sac import SAC
from powerband.algos.settings import SACConfig
from powerband.core.noise import NoiseSource
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec

LOW, HIGH = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
SPEC = EnvSpec(TensorSpec((3,)), TensorSpec((2,)), low=LOW, high=HIGH)


def learner(precision="fp32", spec=SPEC, seed=0, **config) -> SAC:
    torch.manual_seed(seed)
    return SAC(spec, SACConfig(**{"hidden": (16, 16), **config}), RankContext.single("cpu", precision))


def batch(n=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(n, 3, generator=draw),
        "next_obs": torch.randn(n, 3, generator=draw),
        "action": LOW + (HIGH - LOW) * torch.rand(n, 2, generator=draw),
        "reward": torch.randn(n, generator=draw),
        "terminated": torch.rand(n, generator=draw) < 0.3,
    }


def squashed(actor, obs, normal):
    mean, log_std = actor(obs).chunk(2, -1)
    normal_policy = distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + log_std.exp() * normal
    action = torch.tanh(u)
    log_prob = normal_policy.log_prob(u) - distributions.TanhTransform().log_abs_det_jacobian(u, action)
    return action, log_prob.sum(-1)


def test_a_longer_window_raises_the_discount_to_the_power_of_its_steps():
    one, other, data = learner(), learner(gamma=0.99**3), batch()
    first = one.update({**data, "steps": torch.full((8,), 3)})
    second = other.update(data)
    torch.testing.assert_close(first["losses/critic"], second["losses/critic"])
    assert not torch.equal(first["losses/critic"], learner().update(data)["losses/critic"])


def test_layer_norm_bounds_values_far_from_the_data():
    plain, normed, far = learner(), learner(layer_norm=True), torch.full((1, 5), 1e4)
    assert plain.critic(far).abs().amax().item() > 100 > 10 > normed.critic(far).abs().amax().item()


def test_update_equals_the_reference():
    ours = learner(actor_lr=1e-2, critic_lr=1e-2, tau=0.1)
    actor, critic, target = (copy.deepcopy(net) for net in (ours.actor, ours.critic, ours.target_critic))
    log_alpha = torch.zeros((), requires_grad=True)
    actor_adam = torch.optim.Adam(actor.parameters(), 1e-2)
    critic_adam = torch.optim.Adam(critic.parameters(), 1e-2)
    alpha_adam = torch.optim.Adam([log_alpha], 1e-2)
    draws = NoiseSource(0)
    for seed in range(4):
        data = batch(seed=seed)
        figures = ours.update(data)
        noise = draws("sac/update", 8).normal(2, 2)
        scaled = (data["action"] - LOW) / (HIGH - LOW) * 2 - 1
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = squashed(actor, data["next_obs"], noise[:, 0])
            both = target(torch.cat([data["next_obs"], next_action], -1)).squeeze(-1)
            y = data["reward"] + 0.99 * (~data["terminated"]) * (torch.minimum(*both) - alpha * next_log_prob)
        q1, q2 = critic(torch.cat([data["obs"], scaled], -1)).squeeze(-1)
        critic_loss = 0.5 * ((q1 - y) ** 2).mean() + 0.5 * ((q2 - y) ** 2).mean()
        critic_adam.zero_grad()
        critic_loss.backward()
        critic_adam.step()
        action, log_prob = squashed(actor, data["obs"], noise[:, 1])
        actor_loss = (
            alpha * log_prob - torch.minimum(*critic(torch.cat([data["obs"], action], -1)).squeeze(-1))
        ).mean()
        actor_adam.zero_grad()
        actor_loss.backward()
        actor_adam.step()
        alpha_loss = -(log_alpha * (log_prob.detach() - 2)).mean()
        alpha_adam.zero_grad()
        alpha_loss.backward()
        alpha_adam.step()
        for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
            slow.data.copy_(0.9 * slow.data + 0.1 * fast.data)
        torch.testing.assert_close(figures["losses/critic"], critic_loss.detach(), rtol=1e-4, atol=1e-4)
    pairs = ((ours.actor, actor), (ours.critic, critic), (ours.target_critic, target))
    for mine, theirs in pairs:
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-4)
    torch.testing.assert_close(ours.temperature.log_alpha, log_alpha, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_clipped_to_their_norm(fused):
    free, clipped = learner(fused=fused), learner(fused=fused, max_grad_norm=1e-3)
    figures = [each.update(batch()) for each in (free, clipped)]
    assert figures[0]["losses/critic_grad_norm"] == figures[1]["losses/critic_grad_norm"] > 1e-3
    assert float(clipped.critic_adam.grad.norm()) == pytest.approx(1e-3, rel=1e-3)
    assert float(clipped.actor_adam.grad.norm()) == pytest.approx(1e-3, rel=1e-3)
    assert float(free.critic_adam.grad.norm()) > 1e-2


def test_log_prob_is_a_density():
    ours = learner(spec=EnvSpec(TensorSpec((1,)), TensorSpec((1,)), low=-torch.ones(1), high=torch.ones(1)))
    obs = torch.zeros(20_001, 1)
    normal = torch.linspace(-8, 8, 20_001).unsqueeze(1)
    with torch.no_grad():
        action, log_prob = ours._policy(obs, normal)
    mass = torch.trapezoid(log_prob.double().exp(), action.squeeze(1).double())
    assert abs(mass - 1) < 1e-3


def test_actions_are_in_the_units_and_bounds_of_the_environment():
    ours = learner()
    action, extras, carry = ours.act(torch.randn(500, 3), None, True)
    assert extras == {} and carry is None
    assert (action >= LOW).all() and (action <= HIGH).all()
    assert (action.amax(0) > LOW + 0.8 * (HIGH - LOW)).all() and (action.amin(0) < LOW + 0.2 * (HIGH - LOW)).all()
    greedy = ours.act(torch.randn(5, 3), None, False)[0]
    assert greedy.shape == (5, 2)


def test_policy_interval():
    ours = learner(policy_interval=2)
    before = ours.actor_adam.flat.detach().clone()
    assert "losses/actor" not in ours.update(batch())
    assert torch.equal(ours.actor_adam.flat, before)
    assert "losses/actor" in ours.update(batch())
    assert not torch.equal(ours.actor_adam.flat, before)


def test_two_half_batches_averaged_are_one_joint_batch():
    """The ranks hold the halves of the global sample ids, so their noise is that of the joint batch."""
    data = batch(8)
    joint = learner()
    joint.update(data)
    halves = [{key: leaf[4 * rank : 4 * rank + 4] for key, leaf in data.items()} for rank in range(2)]
    gradients: list[list[torch.Tensor]] = [[], []]
    for rank in range(2):
        torch.manual_seed(0)
        context = simulated_context(lambda grad, rank=rank: gradients[rank].append(grad.clone()), rank=rank)
        SAC(SPEC, SACConfig(hidden=(16, 16)), context).update(halves[rank])
    torch.manual_seed(0)
    mean_critic = (gradients[0][0] + gradients[1][0]) / 2
    critic_only: list[torch.Tensor] = []

    def average(grad):
        critic_only.append(grad)
        if len(critic_only) == 1:
            grad.copy_(mean_critic)

    ranked = SAC(SPEC, SACConfig(hidden=(16, 16)), simulated_context(average, world_size=2))
    ranked.update(halves[0])
    torch.testing.assert_close(ranked.critic_adam.flat, joint.critic_adam.flat, rtol=0, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_learns_a_bandit(precision):
    """One-step episodes: the reward is minus the squared distance to the observed point."""
    spec = EnvSpec(TensorSpec((1,)), TensorSpec((1,)), low=torch.tensor([-2.0]), high=torch.tensor([2.0]))
    ours = learner(precision, spec, hidden=(32, 32), actor_lr=3e-3, critic_lr=3e-3, target_entropy=-3.0)
    for _ in range(500):
        obs = torch.rand(64, 1) * 2 - 1
        action, _, _ = ours.act(obs, None, True)
        reward = -4 * (action - obs).square().squeeze(-1)
        terminated = torch.ones(64, dtype=torch.bool)
        ours.update({"obs": obs, "next_obs": obs, "action": action, "reward": reward, "terminated": terminated})
    obs = torch.rand(200, 1) * 2 - 1
    assert (ours.act(obs, None, False)[0] - obs).abs().mean() < 0.15
    assert ours.temperature.log_alpha < math.log(1.0)


def test_unsupported_actions_are_refused():
    for spec in (
        EnvSpec(TensorSpec((3,)), TensorSpec((), torch.int64), num_actions=3),
        EnvSpec(TensorSpec((3,)), TensorSpec((1,)), low=torch.tensor([-math.inf]), high=torch.tensor([1.0])),
    ):
        with pytest.raises(ValueError, match="algo=ppo"):
            learner(spec=spec)


def test_actions_of_several_axes_are_refused_and_constant_entries_learned():
    box = torch.ones(2, 2)
    with pytest.raises(ValueError, match="algo=sac needs one action vector.*Flatten the actions"):
        learner(spec=EnvSpec(TensorSpec((3,)), TensorSpec((2, 2)), low=-box, high=box))
    ours = learner(spec=EnvSpec(SPEC.obs, SPEC.action, low=torch.tensor([-1.0, 2.0]), high=torch.tensor([1.0, 2.0])))
    obs = torch.randn(16, 3)
    action, *_ = ours.act(obs, None, True)
    rows = {"obs": obs, "next_obs": obs, "action": action, "reward": torch.zeros(16)}
    losses = ours.update({**rows, "terminated": torch.zeros(16, dtype=torch.bool)})
    assert (action[:, 1] == 2).all() and all(torch.isfinite(loss) for loss in losses.values())
