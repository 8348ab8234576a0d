"""Features: joins observation trees to rows of features, for algorithms without an encoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import Tree, tree_paths

RESERVED = ("state", "action_mask")
"""Keys of an observation that the actor does not read as features, see `data.types`."""


def features(obs: Tree, leading: int) -> Tensor:
    """Joins the tensors of an observation to one feature vector per row, without ``state`` and ``action_mask``.

    Args:
        obs: Tensor or nested dict of tensors, each with `leading` axes (environment, agent, ...) before its own.
        leading: Number of leading axes to keep.

    Returns:
        Features (..., F numbers) float32, where `...` are the leading axes. A single float32 tensor of this shape is
        returned without a copy.
    """
    leaves = [leaf.flatten(leading) if leaf.dim() > leading else leaf.unsqueeze(-1) for leaf in feature_leaves(obs)]
    leaves = [leaf if leaf.is_floating_point() else leaf.float() for leaf in leaves]
    return leaves[0] if len(leaves) == 1 else torch.cat(leaves, -1)


def feature_leaves(obs: Tree) -> list:
    """Lists the tensors (or specs) in `obs` that an actor reads: all except ``state`` and ``action_mask``.

    Raises:
        ConfigError: `obs` has no such tensor.
    """
    leaves = [leaf for path, leaf in tree_paths(obs) if path.split("/")[0] not in RESERVED]
    if not leaves:
        raise ConfigError("The observation has only state and action_mask. Add an entry that the actor can read.")
    return leaves


def action_mask(obs: Tree) -> Tensor | None:
    """Returns the mask of allowed actions (..., K actions) bool in `obs`; None if it has none."""
    return obs["action_mask"].bool() if isinstance(obs, dict) and "action_mask" in obs else None


def state_width(obs: Tree, num_agents: int | None) -> int:
    """Returns the width of the entry ``state``, which a central critic reads; 0 if observations have no such entry.

    Args:
        obs: `TensorSpec` or nested dict of them, the specs of the observations without the environment axis.
        num_agents: Length of the agent axis, which the entry may have or not; None without this axis.

    Raises:
        ConfigError: The entry is not a vector of numbers.
    """
    if not isinstance(obs, dict) or "state" not in obs:
        return 0
    spec = obs["state"]
    numbers = not isinstance(spec, dict) and not spec.categories
    if numbers and (len(spec.shape) == 1 or spec.shape[:-1] == (num_agents,)):
        return spec.shape[-1]
    found = f"has the shape {spec.shape}" if numbers else "consists of categories or of several entries"
    shapes = "(width,)" if num_agents is None else f"(width,) or ({num_agents}, width)"
    raise ConfigError(
        f"The entry state of the observation {found}, but a central critic reads a vector of numbers, of the shape "
        f"{shapes}. Convert it to such a vector, or rename it so that the policy reads it."
    )


def num_features(obs: Tree, num_agents: int | None) -> int:
    """Returns the number of features per row that `features` computes from observations.

    A row is an environment, or an agent of an environment if there are several agents.

    Args:
        obs: `TensorSpec` or nested dict of them, the specs of the observations without the environment axis.
        num_agents: Length of the agent axis; None without this axis.

    Raises:
        ConfigError: A spec has no agent axis although `num_agents` is not None, or no spec is left for the actor.
    """
    leaves = feature_leaves(obs)
    if num_agents is None:
        return sum(math.prod(spec.shape) for spec in leaves)
    for spec in leaves:
        if spec.shape[:1] != (num_agents,):
            raise ConfigError(
                f"An entry of the observation has shape {spec.shape}, but its first axis must be the {num_agents} "
                f"agents. Repeat the entry for each agent, or name it state if only the critic reads it."
            )
    return sum(math.prod(spec.shape[1:]) for spec in leaves)
