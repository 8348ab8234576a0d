"""Learners of metaworld: losses compared with plain formulas, learning, and resume."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from powerband.algos.sac import SAC
from powerband.algos.settings import SACConfig
from powerband.core.noise import NoiseSource
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec
from powerband.loops.evaluate import wilson_interval
from powerband.recipes.metaworld.algos.distill import DistillationLearner, policy_loss
from powerband.recipes.metaworld.algos.imitate import ImitationLearner
from powerband.recipes.metaworld.algos.represent import RepresentationLearner, info_nce
from powerband.recipes.metaworld.algos.student import StudentLearner, imitation_bonus
from powerband.recipes.metaworld.evaluation import summary
from powerband.recipes.metaworld.nets.collective import CollectiveActorCritic, shared_state
from powerband.recipes.metaworld.settings import (
    DistillConfig,
    ImitateConfig,
    RepresentConfig,
    StudentConfig,
    TrajectoryEncoderConfig,
)
from powerband.recipes.metaworld.stages.student import finetuned_sac

NET = TrajectoryEncoderConfig(length=5, width=16, layers=1, heads=4, feedforward=32, dropout=0.0)


def test_contrastive_loss_equals_a_plain_loop():
    draw = torch.Generator().manual_seed(0)
    one, other = torch.randn(6, 3, generator=draw), torch.randn(6, 3, generator=draw)
    task = torch.tensor([0, 1, 0, 2, 1, 0])

    def one_sided(a, b):
        total = 0.0
        for i in range(6):
            cos = [float(torch.cosine_similarity(a[i], b[j], dim=0)) / 0.15 for j in range(6)]
            candidates = [cos[j] for j in range(6) if j == i or task[j] != task[i]]
            total += math.log(sum(map(math.exp, candidates))) - cos[i]
        return total / 6

    expected = (one_sided(one, other) + one_sided(other, one)) / 2
    assert float(info_nce(one, other, task, 0.15)) == pytest.approx(expected, rel=1e-5)


def trajectories(rows: int, seed: int) -> dict[str, torch.Tensor]:
    """Trajectories of two tasks whose states have different means."""
    draw = torch.Generator().manual_seed(seed)
    task = torch.randint(0, 2, (rows,), generator=draw)
    state = torch.randn(rows, 5, 21, generator=draw) * 0.1 + task[:, None, None]
    action = state[:, :-1, :4] * 0.5
    length = torch.randint(1, 6, (rows,), generator=draw)
    return {"state": state, "action": action, "reward": state[:, :-1, :1], "length": length, "task": task}


def test_representation_learns_and_resumes_bit_for_bit():
    torch.manual_seed(0)
    one = RepresentationLearner(RepresentConfig(lr=2e-3, net=NET), RankContext.single())
    torch.manual_seed(0)
    two = RepresentationLearner(RepresentConfig(lr=2e-3, net=NET), RankContext.single())
    losses = [one.update(trajectories(64, step)) for step in range(60)]
    first, last = (sum(float(each["losses/represent"]) for each in part) / 10 for part in (losses[:10], losses[-10:]))
    assert last < 0.6 * first
    two.load_state_dict(one.state_dict())
    a, b = one.update(trajectories(64, 99)), two.update(trajectories(64, 99))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_representation_accepts_every_seed():
    for seed in (18_500_000, 2**63 - 1):
        learner = RepresentationLearner(RepresentConfig(net=NET), RankContext.single(seed=seed))
        assert torch.isfinite(learner.update(trajectories(4, 0))["losses/represent"])


def test_only_masked_tokens_have_a_loss():
    learner = RepresentationLearner(RepresentConfig(mask_ratio=0.0, net=NET), RankContext.single())
    figures = learner.update(trajectories(16, 0))
    assert float(figures["losses/state"]) == float(figures["losses/reward"]) == 0.0
    learner = RepresentationLearner(RepresentConfig(mask_ratio=1.0, net=NET), RankContext.single())
    assert float(learner.update(trajectories(16, 0))["losses/state"]) > 0.1


def test_policy_loss_equals_the_formula():
    mu, log_std, target_mu, target_log_std = (torch.tensor([[value]]) for value in (0.1, -1.0, 0.4, -5.0))
    expected = 0.3**2 + 0.2 * 16.0 * 2 / 5
    assert float(policy_loss(mu, log_std, target_mu, target_log_std, 0.2)) == pytest.approx(expected, rel=1e-5)
    assert float(policy_loss(mu, log_std, target_mu, torch.tensor([[-1.5]]), 0.2)) == pytest.approx(
        0.09 + 0.2 * 0.25, rel=1e-5
    )


def labelled(rows: int, seed: int) -> dict[str, torch.Tensor]:
    """A batch with the labels of a made-up expert."""
    draw = torch.Generator().manual_seed(seed)
    z, state = torch.randn(rows, 6, generator=draw), torch.randn(rows, 21, generator=draw)
    action = torch.rand(rows, 4, generator=draw) * 2 - 1
    return {
        "z": z,
        "state": state,
        "action": action,
        "mu": torch.tanh(state[:, :4] * z[:, :1]),
        "log_std": torch.full((rows, 4), -1.0),
        "reward": state[:, 0],
        "q_target": 2 * z[:, 1],
        "gamma": torch.full((rows,), 0.5),
    }


def test_distillation_learns_the_policy_then_values_that_include_the_reward():
    torch.manual_seed(0)
    config = DistillConfig(actor_updates=150, critic_updates=400, lr=3e-3, hidden=(32, 32))
    learner = DistillationLearner(config, 6, RankContext.single())
    first = learner.update(labelled(256, 0))
    assert "losses/distill_actor" in first
    for step in range(1, 150):
        last = learner.update(labelled(256, step))
    assert float(last["losses/distill_actor"]) < 0.3 * float(first["losses/distill_actor"])
    frozen = [p.clone() for p in learner.net.actor.parameters()]
    for step in range(400):
        figures = learner.update(labelled(256, step))
    assert "losses/distill_critic" in figures
    assert all(torch.equal(p, before) for p, before in zip(learner.net.actor.parameters(), frozen, strict=True))
    batch = labelled(256, 7)
    with torch.no_grad():
        q = learner.net.value(batch["z"], batch["state"], batch["action"]).mean(0)
    target = batch["reward"] + batch["gamma"] * batch["q_target"]
    assert float((q - target).square().mean()) < 0.2 * float(target.square().mean())
    assert float((q - batch["q_target"]).square().mean()) > float((q - target).square().mean())


@pytest.mark.slow
def test_compiled_losses_equal_eager_ones():
    """Dropout is off in `NET`, because compiled code draws other numbers."""
    figures = {}
    for compiled in (False, True):
        torch.manual_seed(0)
        encoder = RepresentationLearner(RepresentConfig(net=NET, compile=compiled), RankContext.single())
        losses = [encoder.update(trajectories(32, step)) for step in range(3)]
        distilled = DistillationLearner(
            DistillConfig(actor_updates=2, hidden=(16,), compile=compiled), 6, RankContext.single()
        )
        losses += [distilled.update(labelled(32, step)) for step in range(4)]
        figures[compiled] = losses
    for eager, compiled in zip(figures[False], figures[True], strict=True):
        for name, value in eager.items():
            torch.testing.assert_close(compiled[name], value, rtol=1e-4, atol=1e-5)


def test_imitation_bonus_is_a_product_of_gaussians():
    action, mu = torch.tensor([[0.2, -0.1]]), torch.tensor([[0.1, 0.1]])
    log_std = torch.log(torch.tensor([[0.5, 0.2]]))
    expected = math.exp(-(0.1**2) / (2 * 0.25)) * math.exp(-(0.2**2) / (2 * 0.04))
    assert float(imitation_bonus(action, mu, log_std)) == pytest.approx(expected, rel=1e-5)
    tiny = imitation_bonus(torch.tensor([[1e-4]]), torch.tensor([[0.0]]), torch.tensor([[-50.0]]))
    assert float(tiny) == pytest.approx(math.exp(-0.5), rel=1e-4), "sigma is at least 1e-4"


def student(config: StudentConfig, seed: int = 0) -> tuple[StudentLearner, EnvSpec]:
    bound = torch.ones(4)
    obs = {"obs": TensorSpec((39,)), "z": TensorSpec((6,))}
    spec = EnvSpec(obs=obs, action=TensorSpec((4,)), low=-bound, high=bound)
    torch.manual_seed(1)
    collective = CollectiveActorCritic()
    torch.manual_seed(seed)
    sac = SACConfig(hidden=(16, 16))
    return StudentLearner(config, collective, spec, sac, RankContext.single(seed=seed)), spec


def transitions(rows: int) -> dict:
    draw = torch.Generator().manual_seed(2)
    obs = {"obs": torch.randn(rows, 39, generator=draw), "z": torch.randn(rows, 6, generator=draw)}
    return {
        "obs": obs,
        "next_obs": {name: part + 0.1 for name, part in obs.items()},
        "action": torch.rand(rows, 4, generator=draw) * 2 - 1,
        "reward": torch.rand(rows, generator=draw),
        "terminated": torch.zeros(rows, dtype=torch.bool),
    }


def test_the_bonus_is_constant_then_fades_and_adds_to_the_reward():
    learner, _ = student(StudentConfig(bonus=2.0, hold_steps=100, fade_steps=200))
    obs = transitions(10)["obs"]
    weights = []
    for _ in range(35):
        learner.act(obs, None, explore=True)
        weights.append(float(learner.weight))
    assert weights[:10] == [2.0] * 10
    assert weights[19] == pytest.approx(1.0) and weights[-1] == 0.0
    learner.act(obs, None, explore=False)
    assert learner.acted == 350, "evaluation must not count steps"

    # SAC without a bonus makes the same update if the reward contains the bonus.
    one, spec = student(StudentConfig(bonus=0.7))
    other, _ = student(StudentConfig(bonus=0.0))
    batch = transitions(32)
    mu, log_std = one.collective.policy(batch["obs"]["z"], shared_state(batch["obs"]["obs"]))
    shaped = {**batch, "reward": batch["reward"] + 0.7 * imitation_bonus(batch["action"], mu, log_std)}
    assert torch.equal(one.update(batch)["losses/critic"], other.update(shaped)["losses/critic"])
    assert not torch.equal(one.update(batch)["losses/critic"], other.update(batch)["losses/critic"])


def test_a_student_without_bonus_equals_sac():
    learner, spec = student(StudentConfig(bonus=0.0))
    torch.manual_seed(0)
    plain = SAC(
        EnvSpec(obs=spec.obs["obs"], action=spec.action, low=spec.low, high=spec.high),
        SACConfig(hidden=(16, 16)),
        RankContext.single(),
    )
    batch = transitions(32)
    bare = {**batch, "obs": batch["obs"]["obs"], "next_obs": batch["next_obs"]["obs"]}
    assert torch.equal(learner.update(batch)["losses/critic"], plain.update(bare)["losses/critic"])


def test_imitation_learns_the_teacher_before_the_teacher_acts():
    torch.manual_seed(0)

    def teacher(obs):
        return torch.tanh(obs[:, :4])

    config = ImitateConfig(lr=3e-3, hidden=(32, 32), teacher_start_step=30)
    learner = ImitationLearner(config, teacher, RankContext.single())
    obs = torch.randn(256, 39, generator=torch.Generator().manual_seed(0))
    losses = [float(learner.update({"obs": obs})["losses/imitate"]) for _ in range(150)]
    assert losses[-1] < 0.1 * losses[0]
    own = [learner.act(obs[:10], None, explore=True)[0] for _ in range(5)]
    assert all(not torch.equal(action, teacher(obs[:10])) for action in own[:3])
    assert all(torch.equal(action, teacher(obs[:10])) for action in own[3:])


def test_labels_of_sac_are_its_action_and_target_value():
    bound = torch.ones(4)
    spec = EnvSpec(obs=TensorSpec((39,)), action=TensorSpec((4,)), low=-bound, high=bound)
    torch.manual_seed(0)
    sac = SAC(spec, SACConfig(hidden=(16, 16)), RankContext.single())
    batch = transitions(8)
    obs, next_obs = batch["obs"]["obs"], batch["next_obs"]["obs"]
    labels = sac.labels({"obs": obs, "next_obs": next_obs})
    torch.testing.assert_close(labels["mu"], sac.act(obs, None, explore=False)[0])
    noise = NoiseSource(0)("sac/labels", 8).normal(4)
    with torch.no_grad():
        action, log_prob = sac._policy(next_obs, noise)
        q = sac.target_critic(torch.cat([next_obs, action], -1)).squeeze(-1).amin(0)
    torch.testing.assert_close(labels["q_target"], q - 1.0 * log_prob)


def test_sac_updates_its_targets_at_their_interval():
    bound = torch.ones(4)
    spec = EnvSpec(obs=TensorSpec((39,)), action=TensorSpec((4,)), low=-bound, high=bound)
    sac = SAC(spec, SACConfig(hidden=(16, 16), target_interval=3), RankContext.single())
    batch = transitions(8)
    plain = {**batch, "obs": batch["obs"]["obs"], "next_obs": batch["next_obs"]["obs"]}
    before, moved = sac.target.flat.clone(), []
    for _ in range(6):
        sac.update(plain)
        moved.append(not torch.equal(sac.target.flat, before))
        before = sac.target.flat.clone()
    assert moved == [False, False, True, False, False, True]
    with pytest.raises(ValueError, match="target_interval=0"):
        SACConfig(target_interval=0)


def test_fine_tuning_begins_with_the_critics_of_the_collective_network():
    """Critics with layer norms have equal parameters, and other values."""
    collective = CollectiveActorCritic(hidden=(8,))
    spec = EnvSpec(TensorSpec((27,)), TensorSpec((4,)), low=-torch.ones(4), high=torch.ones(4))
    run: Any = SimpleNamespace(context=RankContext.single())
    sac = finetuned_sac(collective, spec, SACConfig(hidden=(16, 16), layer_norm=True), run)
    x = torch.randn(5, 31)
    torch.testing.assert_close(sac.critic(x), collective.critic(x))
    torch.testing.assert_close(sac.target_critic(x), collective.critic(x))


def test_the_interval_of_a_deterministic_policy_counts_each_goal_once():
    played = {"success": torch.cat([torch.ones(96), torch.zeros(4)]), "return": torch.zeros(100)}
    figures = summary(played, 50)
    assert (figures["success_low"], figures["success_high"]) == pytest.approx(wilson_interval(48, 50))
    assert (figures["success"], figures["episodes"]) == (0.96, 100)
