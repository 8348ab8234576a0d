"""Observations as rows of features: what an algorithm does with a tree when it is given no encoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerband.data.types import Tree, tree_paths

RESERVED = ("state", "action_mask")
"""Keys of a dict observation that are no features of the actor: see `data.types`."""


def features(obs: Tree, leading: int) -> Tensor:
    """Joins all leaves but the reserved ones along the last axis.

    Args:
        obs: Tensor or tree of tensors, each with `leading` axes (environment, agent, ...) before its own.
        leading: Number of leading axes to keep.

    Returns:
        (..., F) float32; a single tensor of the right shape is returned as it is.
    """
    leaves = [leaf.flatten(leading) if leaf.dim() > leading else leaf.unsqueeze(-1) for leaf in feature_leaves(obs)]
    leaves = [leaf if leaf.is_floating_point() else leaf.float() for leaf in leaves]
    return leaves[0] if len(leaves) == 1 else torch.cat(leaves, -1)


def feature_leaves(obs: Tree) -> list:
    """Leaves (tensors or specs) of `obs` that an actor sees."""
    leaves = [leaf for path, leaf in tree_paths(obs) if path.split("/")[0] not in RESERVED]
    if not leaves:
        raise ValueError("the observation has no features beside state and action_mask; add an entry for the actor.")
    return leaves


def num_features(obs: Tree, num_agents: int | None) -> int:
    """Width of ``features`` for the specs `obs`; with an agent axis, of one agent."""
    leaves = feature_leaves(obs)
    if num_agents is None:
        return sum(math.prod(spec.shape) for spec in leaves)
    for spec in leaves:
        if spec.shape[:1] != (num_agents,):
            raise ValueError(
                f"an entry of the observation has shape {spec.shape}: with {num_agents} agents each has the agent axis "
                f"first. Repeat it for every agent, or name it state if only the critic sees it."
            )
    return sum(math.prod(spec.shape[1:]) for spec in leaves)
