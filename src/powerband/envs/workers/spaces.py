"""Spaces: observation and action spaces of an environment in plain values that processes can exchange.

This file imports no torch, because worker processes import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from powerband.core.errors import ConfigError

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple trees of them"
WRAPPERS = {
    "Text": "Encode the text as numbers with gymnasium.wrappers.TransformObservation",
    "Sequence": "Pad the sequence to a fixed length with gymnasium.wrappers.TransformObservation",
    "Graph": "Convert the graph to arrays of fixed shape with gymnasium.wrappers.TransformObservation",
}
"""Space without a tensor form -> wrapper that gives it one."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or an action.

    Attributes:
        shape: Shape without the environment axis.
        dtype: Type in which it is stored: "float32", "int64", "uint8" or "bool".
        start: Smallest value of a Discrete or MultiDiscrete space, which is stored as 0; 0 for other spaces.
        categories: Number of values of each entry, in flat order, if the entries are categories.
        high: Largest value of an image; None for other arrays and for images in 0..1.
    """

    shape: tuple[int, ...]
    dtype: str
    start: int = 0
    categories: tuple[int, ...] = ()
    high: float | None = None


@dataclass(frozen=True)
class Spaces:
    """Observation and action spaces of one environment.

    Attributes:
        obs: `Leaf` or nested dict of leaves, the arrays of an observation.
        action: Action of the learner: float32 in the units of the environment, or int64 counted from 0.
        action_dtype: Type of the actions that the environment expects.
        num_actions: Number of discrete actions, or sum of the choices of all heads; None for a continuous action.
        heads: Number of choices of each entry of a MultiDiscrete action without agents; empty for other actions.
        low: Lower bounds of a continuous action as a flat tuple; None for a discrete action.
        high: Upper bounds of a continuous action as a flat tuple; None for a discrete action.
        num_agents: Length of the agent axis, from the environment's attribute `num_agents`; None without this axis.
        max_episode_steps: Actions after which an episode is truncated; None if the environment declares no limit.
    """

    obs: Any
    action: Leaf
    action_dtype: str
    num_actions: int | None
    heads: tuple[int, ...]
    low: tuple[float, ...] | None
    high: tuple[float, ...] | None
    num_agents: int | None
    max_episode_steps: int | None

    @classmethod
    def from_env(cls, env: Any) -> Spaces:
        """Reads the spaces of a Gymnasium environment.

        Raises:
            ConfigError: A space has no tensor form; the message names the supported spaces.
        """
        env_spec = getattr(env, "spec", None)
        limit = getattr(env_spec, "max_episode_steps", None) or getattr(env, "max_episode_steps", None)
        return cls.from_spaces(
            env.observation_space,
            env.action_space,
            num_agents=getattr(getattr(env, "unwrapped", env), "num_agents", None),
            max_episode_steps=limit and -(-limit // steps_per_action(env)),
        )

    @classmethod
    def from_spaces(
        cls, observation_space: Any, action_space: Any, *, num_agents: int | None, max_episode_steps: int | None
    ) -> Spaces:
        """Converts the spaces of one Gymnasium environment.

        Args:
            observation_space: Gymnasium space, or `gymnasium.spaces.Dict` of spaces.
            action_space: Gymnasium space.
            num_agents: Length of the agent axis; None without this axis.
            max_episode_steps: Steps after which an episode is truncated; None without a limit.

        Raises:
            ConfigError: A space has no tensor form; the message names the supported spaces.
        """
        dtype, obs = str(np.dtype(action_space.dtype)), _obs_leaf(observation_space, "observation")
        heads = _action_heads(action_space, num_agents)
        if heads:
            action: Leaf = Leaf((len(heads),), "int64")
            return cls(obs, action, dtype, sum(heads), heads, None, None, num_agents, max_episode_steps)
        action, num_actions, low, high = _action_leaf(action_space, num_agents)
        return cls(obs, action, dtype, num_actions, (), low, high, num_agents, max_episode_steps)

    def obs_paths(self) -> list[tuple[tuple[str, ...], Leaf]]:
        """Lists (keys, leaf) of each array of an observation; keys are from the outermost to the innermost."""
        return list(_paths(self.obs, ()))

    def in_own_type(self, actions: np.ndarray) -> np.ndarray:
        """Converts actions (N, ...) to the type that the environments expect, and clips float64 actions to the bounds.

        Before, actions are within bounds that float32 has rounded, perhaps to values beyond those of a float64 space.
        """
        actions = actions.astype(self.action_dtype)
        if self.low is None or self.high is None or self.action_dtype != "float64":
            return actions
        low, high = (np.array(bound).reshape(self.action.shape) for bound in (self.low, self.high))
        return np.clip(actions, low, high)

    def for_environments(self, actions: np.ndarray) -> list[Any]:
        """Converts actions (N, ...) as the learner stores them to one action per environment, in its own values."""
        if self.num_actions is not None and self.action.shape == ():
            return (actions + self.action.start).tolist()
        return list(self.in_own_type(actions))


def steps_per_action(env: Any) -> int:
    """Returns how many steps its time limit counts per action, because wrappers outside of the limit repeat actions."""
    from gymnasium import Wrapper, wrappers

    repeats = 1
    while isinstance(env, Wrapper) and not isinstance(env, wrappers.TimeLimit):
        if isinstance(env, wrappers.RepeatAction):
            repeats *= env.num_repeats
        elif isinstance(env, wrappers.AtariPreprocessing):
            repeats *= env.frame_skip
        env = env.env
    return repeats


def _paths(tree: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    if isinstance(tree, Leaf):
        yield keys, tree
    else:
        for key, value in tree.items():
            yield from _paths(value, (*keys, key))


def _obs_leaf(space: Any, name: str) -> Any:
    """Converts an observation space to a leaf or a dict of leaves; `name` is for the error message."""
    from gymnasium import spaces

    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        tree = {str(key): _obs_leaf(value, f"{name}[{key!r}]") for key, value in parts}
        if slashed := [key for key in tree if "/" in key]:
            raise ConfigError(
                f"The {name} space has the key {slashed[0]!r}, but powerband joins keys with /. Rename it with "
                f"gymnasium.wrappers.TransformObservation; wrappers=MODULE:NAME applies a wrapper of your own."
            )
        if not tree:
            raise ConfigError(f"The {name} space {space} is empty. Remove it, or give it entries of {SUPPORTED}.")
        return tree
    if isinstance(space, spaces.Box):
        return Leaf(tuple(space.shape), _stored_dtype(space.dtype), high=_largest_pixel(space))
    if isinstance(space, spaces.Discrete):
        return Leaf((), "int64", int(space.start), (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        starts = sorted(set(np.ravel(space.start).tolist()))
        if len(starts) > 1:
            raise ConfigError(
                f"The entries of the {name} space {space} start at {', '.join(map(str, starts))}, but those of one "
                f"array need one start. Subtract it with gymnasium.wrappers.TransformObservation; "
                f"wrappers=MODULE:NAME applies a wrapper of your own."
            )
        return Leaf(tuple(space.shape), "int64", starts[0], tuple(space.nvec.ravel().tolist()))
    if isinstance(space, spaces.MultiBinary):
        return Leaf(tuple(space.shape), "bool")
    fix = WRAPPERS.get(type(space).__name__, "Convert it to an array with gymnasium.wrappers.TransformObservation")
    raise ConfigError(
        f"The {name} space {space} has no tensor form. Supported are {SUPPORTED}. {fix}; wrappers=MODULE:NAME applies "
        f"a wrapper of your own."
    )


def _largest_pixel(space: Any) -> float | None:
    """Returns the upper bound of bytes, and of floats from 0 to 255 in three axes or more; None for other arrays."""
    if np.issubdtype(space.dtype, np.unsignedinteger) or len(space.shape) >= 3:
        high = float(np.max(space.high))
        return high if 1.0 < high <= 255.0 and float(np.min(space.low)) >= 0.0 else None
    return None


def _action_heads(space: Any, num_agents: int | None) -> tuple[int, ...]:
    """Returns the number of choices of each entry of a MultiDiscrete action of one agent; empty for other actions."""
    from gymnasium import spaces

    if isinstance(space, spaces.MultiDiscrete) and num_agents is None:
        if len(space.shape) == 1 and not np.any(space.start):
            return tuple(space.nvec.tolist())
    return ()


def _action_leaf(
    space: Any, num_agents: int | None
) -> tuple[Leaf, int | None, tuple[float, ...] | None, tuple[float, ...] | None]:
    """Converts an action space.

    Returns:
        Its `Leaf`; the number of discrete actions, None if continuous; lower and upper bounds, None if discrete.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Leaf((), "int64", int(space.start)), int(space.n), None, None
    if isinstance(space, spaces.MultiDiscrete) and num_agents and not np.any(space.start):
        if tuple(space.shape) == (num_agents,) and len(set(space.nvec.tolist())) == 1:
            return Leaf(tuple(space.shape), "int64"), int(space.nvec.ravel()[0]), None, None
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = (tuple(np.asarray(bound, np.float64).ravel().tolist()) for bound in (space.low, space.high))
        return Leaf(tuple(space.shape), "float32"), None, low, high
    raise ConfigError(
        f"The action space {space} is not supported. Supported are Box of floats, Discrete, and MultiDiscrete with one "
        f"axis that counts from 0; with `num_agents`, it has an equal number of choices for each agent. Wrap the "
        f"environment so that it has one of these."
    )


def _stored_dtype(dtype: Any) -> str:
    """Returns the type in which values are stored: uint8 and bool as they are, floats as float32, others as int64."""
    if dtype in (np.uint8, np.bool_):
        return str(np.dtype(dtype))
    return "float32" if np.issubdtype(dtype, np.floating) else "int64"
