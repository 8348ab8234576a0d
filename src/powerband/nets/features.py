"""Features: joins observation trees to rows of features, for algorithms without an encoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import Tree, tree_paths

RESERVED = ("state", "action_mask")
"""Keys of an observation that the actor does not read, see `data.types`."""


def features(obs: Tree, leading: int) -> Tensor:
    """Joins all leaves except the reserved ``state`` and ``action_mask`` along the last axis.

    Args:
        obs: Tensor or tree of tensors, each with `leading` axes (environment, agent, ...) before its own.
        leading: Number of leading axes to keep.

    Returns:
        Features (..., F numbers) float32, where `...` are the leading axes. A single float32 leaf of this shape is
        returned without a copy.
    """
    leaves = [leaf.flatten(leading) if leaf.dim() > leading else leaf.unsqueeze(-1) for leaf in feature_leaves(obs)]
    leaves = [leaf if leaf.is_floating_point() else leaf.float() for leaf in leaves]
    return leaves[0] if len(leaves) == 1 else torch.cat(leaves, -1)


def feature_leaves(obs: Tree) -> list:
    """Lists the leaves (tensors or specs) of `obs` that an actor reads."""
    leaves = [leaf for path, leaf in tree_paths(obs) if path.split("/")[0] not in RESERVED]
    if not leaves:
        raise ConfigError("The observation has no entry besides state and action_mask. Add an entry for the actor.")
    return leaves


def action_mask(obs: Tree) -> Tensor | None:
    """Returns the mask of allowed actions (..., K actions) in `obs`, or None if all actions are allowed."""
    return obs.get("action_mask") if isinstance(obs, dict) else None


def num_features(obs: Tree, num_agents: int | None) -> int:
    """Returns the number of features per row that `features` makes of observations with the specs `obs`.

    A row is an environment, or an agent of it if `num_agents` is not None.
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
