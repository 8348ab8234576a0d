"""Spaces: what a Gymnasium environment gives and takes, in plain words that cross a process boundary.

No torch here: worker processes import this file and stay small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary and Dict trees of them"


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or an action as it is stored: its shape, dtype and the value that is stored as 0."""

    shape: tuple[int, ...]
    dtype: str
    start: int = 0


@dataclass(frozen=True)
class Spaces:
    """What one environment gives and takes.

    Attributes:
        obs: Leaf or (nested) dict of leaves.
        action: One action as the learner sends it: float32 in the environment's own units, or int64 counted from 0.
        action_dtype: What the environment itself expects.
        num_actions: Number of discrete actions, None for a continuous action.
        low, high: Bounds of a continuous action, flat tuples.
        num_agents: Length of the agent axis, from the environment's attribute `num_agents`, None where it has none.
        max_episode_steps: Its time limit, where it states one.
    """

    obs: Any
    action: Leaf
    action_dtype: str
    num_actions: int | None
    low: tuple[float, ...] | None
    high: tuple[float, ...] | None
    num_agents: int | None
    max_episode_steps: int | None

    @classmethod
    def of(cls, env: Any) -> Spaces:
        """Reads the spaces of a Gymnasium environment.

        Raises:
            ValueError: A space that has no tensor form here; says which are supported.
        """
        stated = getattr(env, "spec", None)
        return cls.between(
            env.observation_space,
            env.action_space,
            num_agents=getattr(getattr(env, "unwrapped", env), "num_agents", None),
            max_episode_steps=getattr(stated, "max_episode_steps", None) or getattr(env, "max_episode_steps", None),
        )

    @classmethod
    def between(cls, observation_space: Any, action_space: Any, **facts: int | None) -> Spaces:
        """Spaces of an environment whose observation and action spaces are given; `facts` are the last two fields."""
        action, num_actions, low, high = _action_leaf(action_space, facts["num_agents"])
        dtype = str(np.dtype(action_space.dtype))
        return cls(_obs_leaf(observation_space, "observation"), action, dtype, num_actions, low, high, **facts)

    def obs_paths(self) -> list[tuple[tuple[str, ...], Leaf]]:
        """The leaves of an observation with the keys that lead to them."""
        return list(_paths(self.obs, ()))


def _paths(tree: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    if isinstance(tree, Leaf):
        yield keys, tree
    else:
        for key, value in tree.items():
            yield from _paths(value, (*keys, key))


def _obs_leaf(space: Any, where: str) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {str(key): _obs_leaf(value, f"{where}[{key!r}]") for key, value in space.spaces.items()}
    if isinstance(space, spaces.Box):
        return Leaf(tuple(space.shape), _stored_dtype(space.dtype))
    if isinstance(space, spaces.Discrete):
        return Leaf((), "int64", int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return Leaf(tuple(space.shape), "int64")
    if isinstance(space, spaces.MultiBinary):
        return Leaf(tuple(space.shape), "bool")
    raise ValueError(
        f"{where} space {space} has no tensor form: supported are {SUPPORTED}. "
        f"Wrap the environment, for example with gymnasium.wrappers.FlattenObservation."
    )


def _action_leaf(space: Any, num_agents: int | None) -> tuple[Leaf, int | None, Any, Any]:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Leaf((), "int64", int(space.start)), int(space.n), None, None
    if isinstance(space, spaces.MultiDiscrete) and num_agents and not np.any(space.start):
        if tuple(space.shape) == (num_agents,) and len(set(space.nvec.tolist())) == 1:
            return Leaf(tuple(space.shape), "int64"), int(space.nvec.ravel()[0]), None, None
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = (tuple(np.asarray(bound, np.float64).ravel().tolist()) for bound in (space.low, space.high))
        return Leaf(tuple(space.shape), "float32"), None, low, high
    raise ValueError(
        f"action space {space} is not supported: supported are Box of floats, Discrete, and MultiDiscrete with one "
        f"equal choice for each of `num_agents` agents. Wrap the environment so that it takes one of these."
    )


def _stored_dtype(dtype: np.dtype) -> str:
    """uint8 (images) and bool stay as they are, floats become float32, other integers int64."""
    if dtype in (np.uint8, np.bool_):
        return str(np.dtype(dtype))
    return "float32" if np.issubdtype(dtype, np.floating) else "int64"
