"""PPO: the loss equals that of a slow reference; agents, masks, recurrence; problems are learned."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from contexts import simulated_context
from powerband.algos.ppo import PPO
from powerband.algos.settings import PPOConfig
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.data.rollout import Rollout, gae
from powerband.data.types import EnvSpec, TensorSpec

DISCRETE = EnvSpec(TensorSpec((4,)), TensorSpec((), torch.int64), num_actions=3)
MASKED = EnvSpec(
    {"view": TensorSpec((2, 4)), "action_mask": TensorSpec((2, 3), torch.bool), "state": TensorSpec((6,))},
    TensorSpec((2,), torch.int64),
    num_actions=3,
    num_agents=2,
)
BOX = EnvSpec(TensorSpec((4,)), TensorSpec((2,)), low=torch.tensor([0.0, -1.0]), high=torch.tensor([4.0, 1.0]))


def learner(spec=DISCRETE, precision="fp32", **config) -> PPO:
    torch.manual_seed(0)
    return PPO(spec, PPOConfig(**{"hidden": (16,), **config}), RankContext.single("cpu", precision))


def observe(spec, *lead):
    obs = (
        {key: torch.randn(*lead, *leaf.shape) for key, leaf in spec.obs.items() if key != "action_mask"}
        if isinstance(spec.obs, dict)
        else torch.randn(*lead, *spec.obs.shape)
    )
    if isinstance(obs, dict):
        obs["action_mask"] = torch.rand(*lead, 2, 3) < 0.5
        obs["action_mask"][..., 0] = True
    return obs


def batch(ours, obs):
    action, extras, _ = ours.act(obs, ours.initial_carry(16), True)
    shape = extras["value"].shape
    extras["log_prob"] = extras["log_prob"] + 0.3 * torch.randn(shape)
    part = {"obs": obs, "action": action, **extras}
    return {**part, "advantages": torch.randn(shape), "returns": torch.randn(shape)}


@pytest.mark.parametrize("value_clip", [None, 0.1])
def test_loss_equals_the_reference(value_clip):
    ours = learner(value_clip=value_clip)
    data = batch(ours, torch.randn(16, 4))
    loss, figures = ours._loss(data)
    logits, value, _ = ours.net(data["obs"])
    expected_policy = expected_value = expected_entropy = 0.0
    for row in range(16):
        policy = torch.distributions.Categorical(logits=logits[row])
        ratio = (policy.log_prob(data["action"][row]) - data["log_prob"][row]).exp()
        advantage = data["advantages"][row]
        expected_policy -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage) / 16
        error = (value[row] - data["returns"][row]) ** 2
        if value_clip is not None:
            old = data["value"][row]
            clipped_value = old + max(min(value[row] - old, value_clip), -value_clip)
            error = max(error, (clipped_value - data["returns"][row]) ** 2)
        expected_value += 0.5 * error / 16
        expected_entropy += policy.entropy() / 16
    torch.testing.assert_close(loss, expected_policy + 0.5 * expected_value - 0.01 * expected_entropy)
    torch.testing.assert_close(figures["losses/entropy"], expected_entropy.detach())


@pytest.mark.parametrize("spec", [DISCRETE, MASKED, BOX], ids=["discrete", "masked agents", "box"])
@pytest.mark.parametrize("options", [{}, {"shared_trunk": False}, {"normalize_obs": True}, {"gru": 8}], ids=str)
def test_stored_log_prob_and_value_equal_those_of_the_update(spec, options):
    ours = learner(spec, **options)
    steps, envs = 3, 16
    rollout, carry = Rollout(steps, envs, "cpu"), ours.initial_carry(envs)
    start = carry
    for t in range(steps):
        obs = observe(spec, envs)
        action, extras, carry = ours.act(obs, carry, True)
        ended = torch.rand(envs) < 0.3
        if carry is not None:
            carry = carry * ~ended.view(-1, *(1,) * (carry.dim() - 1))
        flags = {"terminated": ended, "truncated": torch.zeros_like(ended)}
        rollout.store(t, {"obs": obs, "action": action, **extras, **flags})
    zeros = torch.zeros_like(rollout.data["value"])
    rollout.data["advantages"], rollout.data["returns"] = zeros + 1, zeros
    for part in rollout.minibatches(2, torch.Generator().manual_seed(0), bool(options.get("gru")), start):
        with torch.no_grad():
            _, figures = ours._loss(part)
        assert abs(figures["losses/kl"]) < 1e-6 and figures["losses/clipped"] == 0
        torch.testing.assert_close(figures["losses/policy"], torch.tensor(-1.0), rtol=0, atol=1e-5)
    if not options.get("gru"):
        torch.testing.assert_close(ours.value(obs), extras["value"])


def test_masked_actions_are_not_taken_and_agents_are_rows():
    ours = learner(MASKED)
    obs = observe(MASKED, 200)
    action, extras, _ = ours.act(obs, None, True)
    assert action.shape == extras["log_prob"].shape == extras["value"].shape == (200, 2)
    assert obs["action_mask"].gather(-1, action.unsqueeze(-1)).all()


def test_central_critic_sees_the_state():
    ours = learner(MASKED, shared_trunk=False)
    obs = observe(MASKED, 5)
    other = {**obs, "state": obs["state"] + 1}
    assert (ours.value(obs) != ours.value(other)).all()
    assert torch.equal(ours.act(obs, None, False)[0], ours.act(other, None, False)[0])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (TensorSpec((), torch.int64, (5,)), "consists of categories"),
        (TensorSpec((8, 8, 3), torch.uint8), r"has the shape \(8, 8, 3\)"),
        ({"a": TensorSpec((2,))}, "consists of categories or of several entries"),
    ],
)
def test_a_state_that_is_no_vector_is_refused(state, message):
    spec = EnvSpec({"view": TensorSpec((4,)), "state": state}, TensorSpec((), torch.int64), num_actions=3)
    with pytest.raises(ConfigError, match=f"state of the observation {message}.*vector.*rename it"):
        learner(spec, shared_trunk=False)
    learner(spec, shared_trunk=True)


def test_a_state_of_each_agent_is_read():
    spec = replace(MASKED, obs={**MASKED.obs, "state": TensorSpec((2, 5))})
    ours = learner(spec, shared_trunk=False)
    obs = observe(spec, 3)
    first = {**obs, "state": obs["state"] + torch.tensor([1.0, 0.0]).view(2, 1)}
    changed = ours.value(first) != ours.value(obs)
    assert changed[:, 0].all() and not changed[:, 1].any()


def test_reserved_names_inside_an_entry_are_features():
    spec = EnvSpec({"robot": {"state": TensorSpec((4,))}}, DISCRETE.action, num_actions=3)
    ours = learner(spec)
    assert ours.act({"robot": {"state": torch.randn(5, 4)}}, None, True)[0].shape == (5,)


def test_continuous_actions_are_in_the_units_and_bounds():
    ours = learner(BOX, log_std=1.0)
    action, extras, _ = ours.act(torch.randn(500, 4), None, True)
    assert (action >= BOX.low).all() and (action <= BOX.high).all() and extras["raw_action"].abs().max() > 1


def test_only_entries_without_bounds_are_not_clipped():
    low, high = torch.tensor([0.0, -torch.inf]), torch.tensor([4.0, torch.inf])
    ours = learner(EnvSpec(TensorSpec((4,)), TensorSpec((2,)), low=low, high=high), log_std=1.0)
    action, *_ = ours.act(torch.randn(500, 4), None, True)
    assert action[:, 0].amin() == 0 and action[:, 0].amax() == 4 and action[:, 1].abs().amax() > 1


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_continuous_actions_that_are_no_vector_are_refused(shape):
    spec = EnvSpec(TensorSpec((4,)), TensorSpec(shape), low=-torch.ones(shape), high=torch.ones(shape))
    with pytest.raises(ValueError, match="algo=ppo needs continuous actions of one vector.*Flatten the actions"):
        learner(spec)


def test_a_low_temperature_samples_powers_of_the_policy():
    ours, obs = learner(), torch.randn(1, 4).expand(20_000, 4)
    probs = ours.net(obs[:1])[0].softmax(-1)[0]
    cold = probs**2 / (probs**2).sum()
    action, extras, _ = ours.act(obs, None, True, temperature=0.5)
    assert torch.allclose(extras["log_prob"].exp(), cold[action])
    assert torch.allclose(action.bincount(minlength=3) / len(action), cold, atol=0.02)
    boxes, zero_obs = learner(BOX, log_std=-3.0), torch.zeros(20_000, 4)
    std = boxes.act(zero_obs, None, True, temperature=0.25)[1]["raw_action"].std(0)
    assert torch.allclose(std, torch.full((2,), math.exp(-3) / 2), rtol=0.03)


@pytest.mark.parametrize(("other", "trains"), [(0.0, True), (1.0, False)])
def test_target_kl_limits_the_mean_over_all_ranks(other, trains):
    """This rank's part of the mini-batch is above the limit, and the mean with the other rank's may be below."""

    def average(tensor):
        if tensor.dim() == 0:
            tensor.copy_((tensor + other) / 2)

    settings = PPOConfig(hidden=(16,), shared_trunk=False, target_kl=0.03)
    ours = PPO(DISCRETE, settings, simulated_context(average, world_size=2))
    before = ours.net.head.weight.clone()
    data = {**batch(ours, torch.randn(16, 4)), "log_prob": None}
    with torch.no_grad():
        logits = ours.net(data["obs"])[0]
    data["log_prob"] = logits.log_softmax(-1).gather(1, data["action"].unsqueeze(1)).squeeze(1) - 0.35
    figures = ours.update(data)
    assert 0.045 < figures["losses/kl"] < 0.09
    assert torch.equal(ours.net.head.weight, before) is not trains


def test_target_kl_freezes_the_policy_but_not_the_value():
    free, held = learner(shared_trunk=False), learner(shared_trunk=False, target_kl=1e-6)
    data = batch(free, torch.randn(16, 4))
    start = copy.deepcopy(held.net.state_dict())
    for side in (free, held):
        side.update(data)
    assert torch.equal(held.net.head.weight, start["head.weight"])
    assert not torch.equal(held.net.value_head.weight, start["value_head.weight"])
    assert not torch.equal(free.net.head.weight, start["head.weight"])


class View(torch.nn.Module):
    """Encoder of observations without parameters."""

    width = 4

    def forward(self, obs):
        return obs["view"]


def test_the_policy_learns_from_an_observed_expert():
    shown = EnvSpec({"view": TensorSpec((4,)), "expert": TensorSpec((), torch.int64)}, DISCRETE.action, num_actions=3)
    torch.manual_seed(0)
    ours = PPO(shown, PPOConfig(hidden=(16,), expert_coef=2.0, lr=1e-2), RankContext.single(), View())
    obs = {"view": torch.randn(16, 4), "expert": torch.randint(3, (16,))}
    data = batch(ours, obs)
    loss, figures = ours._loss(data)
    plain = PPO(shown, PPOConfig(hidden=(16,), lr=1e-2), RankContext.single(), View())
    plain.load_state_dict(copy.deepcopy(ours.state_dict()))
    expert_loss = F.cross_entropy(ours.net(obs["view"])[0], obs["expert"])
    torch.testing.assert_close(loss, plain._loss(data)[0] + 2.0 * expert_loss)
    torch.testing.assert_close(figures["losses/expert"], expert_loss.detach())
    data["advantages"].zero_()
    for _ in range(100):
        last = ours.update(data)["losses/expert"]
    assert last < 0.5 * expert_loss
    with pytest.raises(ValueError, match="expert_coef=1: this environment provides no expert"):
        learner(expert_coef=1.0)


@pytest.mark.parametrize(
    ("progress", "entropy_coef", "expert_coef"),
    [(0.0, 0.1, 2.0), (0.25, 0.075, 1.0), (0.5, 0.05, 0.0), (1.0, 0.0, 0.0)],
)
def test_weights_of_entropy_and_expert_fall_with_the_budget(progress, entropy_coef, expert_coef):
    shown = EnvSpec({"view": TensorSpec((4,)), "expert": TensorSpec((), torch.int64)}, DISCRETE.action, num_actions=3)

    def ours(**config) -> PPO:
        torch.manual_seed(0)
        return PPO(shown, PPOConfig(hidden=(16,), **config), RankContext.single(), View())

    scheduled = ours(entropy_coef=0.1, entropy_end=0.0, expert_coef=2.0, expert_until=0.5)
    data = batch(scheduled, {"view": torch.randn(16, 4), "expert": torch.randint(3, (16,))})
    scheduled.set_progress(progress)
    constant = ours(entropy_coef=entropy_coef, expert_coef=expert_coef)
    torch.testing.assert_close(scheduled._loss(data)[0], constant._loss(data)[0])


def test_the_carry_is_reset_when_an_episode_starts():
    ours = learner(gru=8)
    obs, starts = torch.randn(4, 16, 4), torch.zeros(4, 16, dtype=torch.bool)
    starts[2] = True
    with torch.no_grad():
        full = ours._forward(obs, torch.Size((4, 16)), torch.randn(16, 8), starts)[1].view(4, 16)
        fresh = ours._forward(obs[2:], torch.Size((2, 16)), torch.zeros(16, 8), None)[1].view(2, 16)
    torch.testing.assert_close(full[2:], fresh)


def test_state_round_trip_and_annealing():
    first, second = learner(normalize_obs=True), learner(normalize_obs=True, hidden=(16,))
    first.after_rollout(torch.randn(7, 16, 4) * 3)
    data = batch(first, torch.randn(16, 4))
    first.update(data)
    first.lr = 1e-5
    own = second.lr
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.lr == own != 1e-5  # the rate is a setting, which a resume may change
    second.lr = 1e-5
    for side in (first, second):
        side.update(data)
    for a, b in zip(first.modules.state_dict().values(), second.modules.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert "net.norm.mean" in first.policy_state()


def test_a_gru_needs_a_shared_trunk():
    with pytest.raises(ValueError, match="shared_trunk=true"):
        learner(gru=8, shared_trunk=False)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "box"])
def test_learns_a_bandit(precision, discrete):
    ours = learner(DISCRETE if discrete else BOX, precision, lr=1e-2, entropy_coef=0.0, log_std=-0.5)

    def rewards(obs, action):
        if discrete:
            return (action == obs[:, :3].argmax(-1)).float()
        return -(action - torch.tensor([2.0, 0.5])).square().sum(-1)

    for _ in range(60):
        obs = torch.randn(256, 4)
        action, extras, _ = ours.act(obs, None, True)
        reward = rewards(obs, action)
        advantages = reward - extras["value"]
        advantages = (advantages - advantages.mean()) / advantages.std()
        part = {"obs": obs, "action": action, **extras, "advantages": advantages, "returns": reward}
        for _ in range(3):
            ours.update(part)
    obs = torch.randn(500, 4)
    reward = rewards(obs, ours.act(obs, None, False)[0]).mean()
    assert reward > (0.85 if discrete else -0.1)


def test_a_gru_learns_to_recall():
    """The first observation encodes the action that is rewarded at the third step; without a GRU 1/3 is the maximum."""
    ours = learner(DISCRETE, gru=16, lr=1e-2, entropy_coef=0.0)
    steps, envs = 3, 96
    score = 0.0
    for iteration in range(120):
        rollout, carry = Rollout(steps, envs, "cpu"), ours.initial_carry(envs)
        start, answer = carry, torch.randint(3, (envs,))
        for t in range(steps):
            obs = torch.cat([F.one_hot(answer, 3).float() * (t == 0), torch.full((envs, 1), float(t))], -1)
            action, extras, carry = ours.act(obs, carry, True)
            reward = (action == answer).float() * (t == 2)
            ended = torch.full((envs,), t == 2)
            flags = {"terminated": ended, "truncated": torch.zeros_like(ended)}
            rollout.store(t, {"obs": obs, "action": action, "reward": reward, **extras, **flags})
        data = rollout.data
        next_value = torch.cat([data["value"][1:], torch.zeros(1, envs)])
        advantages, returns = gae(
            data["reward"], data["value"], next_value, data["terminated"], data["truncated"], 0.99, 0.95
        )
        data["advantages"], data["returns"] = (advantages - advantages.mean()) / (advantages.std() + 1e-8), returns
        for _ in range(2):
            for part in rollout.minibatches(2, torch.Generator().manual_seed(iteration), True, start):
                ours.update(part)
        score = data["reward"][2].mean()
        if score > 0.8:
            break
    assert score > 0.8 and math.isfinite(score)


def test_auxiliary_losses_of_the_encoder_are_added():
    class Encoder(torch.nn.Module):
        width = 4

        def forward(self, obs):
            return obs

        def auxiliary(self, obs):
            return {"constant": torch.tensor(3.0)}

    torch.manual_seed(0)
    ours = PPO(DISCRETE, PPOConfig(hidden=(16,)), RankContext.single(), Encoder())
    data = batch(ours, torch.randn(16, 4))
    loss, figures = ours._loss(data)
    ours.auxiliary = None
    torch.testing.assert_close(loss, ours._loss(data)[0] + 3.0)
    assert figures["losses/constant"] == 3.0


HEADS = EnvSpec(
    {"vector": TensorSpec((5,)), "action_mask": TensorSpec((5,), torch.bool)},
    TensorSpec((2,), torch.int64),
    num_actions=5,
    action_heads=(2, 3),
)


def test_the_loss_of_several_heads_uses_the_joint_probability_and_the_sum_of_the_entropies():
    ours = learner(HEADS, shared_trunk=False, fused=True)
    assert ours.fused is None, "the compiled functions have one head"
    mask = torch.rand(16, 5) < 0.5
    mask[:, [0, 2]] = True
    data = batch(ours, {"vector": torch.randn(16, 5), "action_mask": mask})
    assert data["action"].shape == (16, 2) and mask.gather(1, data["action"] + torch.tensor([0, 2])).all()
    figures = ours._loss(data)[1]
    logits = ours.net(data["obs"]["vector"])[0].masked_fill(~mask, -torch.inf)
    heads = [torch.distributions.Categorical(logits=part) for part in logits.split((2, 3), 1)]
    log_prob = sum(head.log_prob(data["action"][:, i]) for i, head in enumerate(heads))
    ratio = (log_prob - data["log_prob"]).exp()
    clipped = ratio.clamp(0.8, 1.2)
    expected = -torch.minimum(ratio * data["advantages"], clipped * data["advantages"]).mean()
    torch.testing.assert_close(figures["losses/policy"], expected.detach())
    torch.testing.assert_close(figures["losses/entropy"], sum(head.entropy() for head in heads).mean().detach())


def test_several_heads_learn_a_bandit_each():
    ours = learner(HEADS, lr=1e-2, entropy_coef=0.0)

    def draw(rows):
        return {"vector": torch.randn(rows, 5), "action_mask": torch.ones(rows, 5, dtype=torch.bool)}

    def rewards(obs, action):
        best = torch.stack([part.argmax(1) for part in obs["vector"].split((2, 3), 1)], 1)
        return (action == best).float().mean(1)

    for _ in range(60):
        obs = draw(256)
        action, extras, _ = ours.act(obs, None, True)
        reward = rewards(obs, action)
        advantages = reward - extras["value"]
        advantages = (advantages - advantages.mean()) / advantages.std()
        part = {"obs": obs, "action": action, **extras, "advantages": advantages, "returns": reward}
        for _ in range(3):
            ours.update(part)
    obs = draw(500)
    assert rewards(obs, ours.act(obs, None, False)[0]).mean() > 0.85  # chance: 0.42
