"""Policies of sketchnav by name: the learner of a run, the follower of the shortest path, and the baselines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerband.algos.chunks.action_chunks import ActionChunkLearner
from powerband.algos.ppo import PPO
from powerband.core.errors import ConfigError
from powerband.data.types import Tree, tree_map
from powerband.recipes.sketchnav.env.baselines import ForwardAndTurn, RandomWalk
from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.imitation.chunk_actor import NavigationChunkActor
from powerband.recipes.sketchnav.nets.sketch_net import SketchNet
from powerband.recipes.sketchnav.plans.episodes.episodes import Episodes

Act = Callable[[SketchNavEnv, Any, Tensor | None], tuple[Tensor, Tensor | None]]
"""Policy: (environment, observations, carry) -> (actions, carry). The carry is the memory of a recurrent policy."""
InitialCarry = Callable[[int], Tensor | None]
"""Function from the number of rows to the initial carry of a policy; None without memory."""
NavigationLearner = PPO | ActionChunkLearner


def no_carry(rows: int) -> None:
    """Returns None, the initial memory (carry) of a policy without memory, for any number of environments."""
    return None


def encoder_of(learner: NavigationLearner) -> SketchNet:
    """Returns the network of a learner that encodes observations as features."""
    assert isinstance(learner.encoder, SketchNet), type(learner.encoder)
    return learner.encoder


def device_of(learner: NavigationLearner) -> torch.device:
    """Returns the device of a learner, which may differ from that of the environment."""
    return encoder_of(learner).sketch.sketches.device


def on_device(obs: Tree, device: torch.device) -> Tree:
    """Returns the observations on `device`; those that are there already are not copied."""
    return tree_map(lambda value: value.to(device), obs)


def as_policy(learner: NavigationLearner, episodes: Episodes, temperature: float = 1.0) -> Act:
    """Turns a learner into a policy that uses the sketches of `episodes`.

    The environment may be on another device: its observations move to the learner, and the actions move back.

    Args:
        learner: Learner, whose encoder receives the sketches.
        episodes: Episodes that the policy will play.
        temperature: Temperature of PPO's actions; 0 takes the likeliest action. Other learners ignore it.

    Returns:
        The policy, a function (environment, observations, carry) -> (actions, carry); the carry is its memory.
    """
    encoder, device = encoder_of(learner), device_of(learner)
    encoder.sketch.set_sketches(episodes.sketch.to(device))
    choose = (
        NavigationChunkActor(learner, encoder.image_keys)
        if isinstance(learner, ActionChunkLearner)
        else _ppo_policy(learner, temperature)
    )

    def act(env: SketchNavEnv, obs: Tree, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        action, carry = choose(env, on_device(obs, device), carry)
        return action.to(env.device), carry

    return act


def _ppo_policy(ppo: PPO, temperature: float) -> Act:
    """Returns the policy of `ppo`, which samples actions with `temperature`, or takes the likeliest if it is 0."""

    def act(env: SketchNavEnv, obs: Tree, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if temperature:
            action, _, carry = ppo.act(obs, carry, explore=True, temperature=temperature)
        else:
            action, _, carry = ppo.act(obs, carry, explore=False)
        return action, carry

    return act


def follow_expert(env: SketchNavEnv, obs: Tree, carry: Tensor | None) -> tuple[Tensor, None]:
    """Policy of the expert: returns actions (N,) int64 along the shortest paths of N agents, and None (no memory)."""
    return env.expert(), None


def named_policy(
    name: str, learner: NavigationLearner, episodes: Episodes, temperature: float = 1.0, seed: int = 0
) -> tuple[Act, InitialCarry]:
    """Creates a policy by its name.

    Args:
        name: random, forward-and-turn, expert (follows the shortest path), policy (the run's) or likeliest (the run's,
            with the likeliest actions).
        learner: Learner of the run.
        episodes: Episodes of a split, whose sketches the learner receives.
        temperature: Temperature of PPO's actions.
        seed: Seed of random and forward-and-turn. The learner has its own random numbers.

    Returns:
        The policy, a function (environment, observations, carry) -> (actions, carry), and a function from the number
        of agents to the initial carry. The carry is the memory of the policy.

    Raises:
        ConfigError: The name is unknown, or the learner does not support the policy.
    """
    if name == "random":
        return RandomWalk(seed), no_carry
    if name == "forward-and-turn":
        return ForwardAndTurn(seed), no_carry
    if name == "expert":
        return follow_expert, no_carry
    if name == "policy":
        act = as_policy(learner, episodes, temperature)
        return act, learner.initial_carry if isinstance(learner, PPO) else no_carry
    if name != "likeliest":
        raise ConfigError(f"Unknown policy {name!r}. Available: random, forward-and-turn, likeliest, policy, expert.")
    if not isinstance(learner, PPO):
        raise ConfigError("policies=likeliest needs algo=ppo. Write policies=policy, which samples actions.")
    return as_policy(learner, episodes, 0), learner.initial_carry
