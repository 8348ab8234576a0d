"""Every learner of every recipe fulfils the protocol of the loop that trains it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from powerband.cli import catalogue
from powerband.core.config.resolve import resolve
from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision
from powerband.core.rank_context import RankContext
from powerband.core.ranks.ranks import Ranks
from powerband.core.recipe import Recipe, load_object
from powerband.core.schedule import UpdateCycle
from powerband.data.types import (
    EnvSpec,
    Learner,
    OfflineLearner,
    OnPolicyLearner,
    StatisticsLearner,
    TargetLearner,
    Tree,
    ValueLearner,
    tree_leaves,
    tree_map,
)
from powerband.doctor.checks.recipes import random_observations, synthetic_batch
from powerband.loops.config import OfflineConfig, OffPolicyConfig, OnPolicyConfig

LOOPS: dict[type, tuple[Any, str]] = {
    OffPolicyConfig: (Learner, "off_policy"),
    OnPolicyConfig: (OnPolicyLearner, "on_policy"),
    OfflineConfig: (OfflineLearner, "offline"),
}
CPU = torch.device("cpu")
ROWS, SEED = 8, 3
SMALL: dict[tuple[str, str], tuple[str, ...]] = {
    ("gym", "sac"): ("env_id=Pendulum-v1",),
    ("gym", "td3"): ("env_id=Pendulum-v1",),
    ("gym", "fast_td3"): ("env_id=Pendulum-v1",),
    ("gym", "dqn"): ("env_id=CartPole-v1",),
    ("gym", "ppo"): ("env_id=CartPole-v1",),
    ("libero", ""): ("variant=smoke",),
    ("sketchnav", "ppo"): ("variant=smoke",),
    ("sketchnav", "diffusion"): ("variant=smoke",),
    ("sketchnav", "clone"): ("variant=smoke",),
}
"""Settings with which a learner is small enough for a test, or suits its environment."""


OPTIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    f"{algo} {option}": ("gym", algo, (*SMALL["gym", algo], f"{algo}.{option}"))
    for algo in ("sac", "td3", "dqn")
    for option in ("normalize_obs=true",)
}
OPTIONS["ppo heads"] = ("gym", "ppo", ("env_id=contract.registered:Dials-v0", "action_mask=true"))
"""Name of a case -> recipe, algorithm and options that change the state of the learner."""


def rows() -> list[tuple[str, str]]:
    """(recipe, algorithm) of all built-in recipes; the algorithm is empty if the recipe has one only."""
    return [(name, algo) for name in catalogue.RECIPES for algo in catalogue.load(name).algorithms or [""]]


def build(name: str, algo: str, options: tuple[str, ...] = ()) -> tuple[Recipe, Any, Learner, EnvSpec]:
    """A learner that draws the same random numbers at each call."""
    recipe = catalogue.load(name)
    flags = [*(options or SMALL.get((name, algo), ())), *([f"algo={algo}"] if algo else [])]
    config = resolve(recipe.Config, flags, variants=recipe.variants).config
    config = recipe.finalized(config, recipe.default_stage)
    config = replace(config, run=replace(config.run, precision="fp32"))
    torch.manual_seed(SEED)
    context = RankContext(
        Ranks(rank=0, world_size=1, device=CPU), Precision("fp32", "cpu"), NoiseSource(SEED, "cpu", 0)
    )
    learner, spec, loop = load_object(recipe.build_learner)(config, context)
    return recipe, loop, learner, spec


def same(one: Tree, other: Tree) -> bool:
    """True if two trees have equal leaves."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize(("name", "algo"), rows())
def test_a_learner_fulfils_the_protocol_of_its_loop(name: str, algo: str) -> None:
    recipe, loop, learner, spec = build(name, algo)
    protocol, loop_name = LOOPS[type(loop)]
    assert isinstance(learner, protocol)
    if isinstance(learner, OnPolicyLearner):
        assert isinstance(learner, ValueLearner | TargetLearner), "an on-policy loop needs values or targets"
    if algo:
        assert recipe.algorithms[algo].loop == loop_name
    if isinstance(learner, Learner):
        assert isinstance(learner.cycle, UpdateCycle)


@pytest.mark.parametrize(("name", "algo", "options"), [(*row, ()) for row in rows()] + list(OPTIONS.values()))
def test_act_update_and_state(name: str, algo: str, options: tuple[str, ...]) -> None:
    _, loop, learner, spec = build(name, algo, options)
    obs = random_observations(spec, CPU, 4)
    carry = learner.initial_carry(4)
    action, extras, after = learner.act(obs, carry, True)
    assert len(action) == 4
    assert all(len(leaf) == 4 for leaf in tree_leaves(extras))
    assert (carry is None) == (after is None)
    if carry is not None and after is not None:
        assert after.shape == carry.shape
    batch = synthetic_batch(learner, spec, CPU, ROWS)
    if isinstance(loop, OfflineConfig) and batch["action"].is_floating_point():
        batch["action"] = torch.randn_like(batch["action"])  # an untrained policy makes zeros and would have no error
    if isinstance(learner, StatisticsLearner):
        learner.update_statistics(obs)
    before = tree_map(torch.clone, learner.policy_state())
    losses = [learner.update(batch) for _ in range(2)][-1]
    assert losses, "an update reports its losses"
    for tag, value in losses.items():
        assert isinstance(value, torch.Tensor), f"{tag} is a {type(value).__name__}, not a tensor"
        assert value.dim() == 0, f"{tag} has the shape {tuple(value.shape)}"
        assert value.device == CPU
        assert not value.requires_grad, f"{tag} would keep the graph of the update alive"
        assert torch.isfinite(value), tag
    assert not same(before, learner.policy_state()), "an update changed nothing of the policy"

    _, _, copy, _ = build(name, algo, options)
    assert not same(copy.policy_state(), learner.policy_state())
    copy.load_state_dict(learner.state_dict())
    assert same(copy.policy_state(), learner.policy_state())
    greedy, copied = (each.act(obs, each.initial_carry(4), False)[0] for each in (learner, copy))
    assert torch.equal(greedy, copied)


@pytest.mark.parametrize(("name", "algo"), rows())
def test_the_learning_rate_can_be_set(name: str, algo: str) -> None:
    _, _, learner, _ = build(name, algo)
    if not isinstance(learner, Learner):
        pytest.skip("the optimiser of an offline learner has a schedule of its own")
    lr = float(learner.lr)
    learner.lr = lr / 2
    assert float(learner.lr) == pytest.approx(lr / 2)
