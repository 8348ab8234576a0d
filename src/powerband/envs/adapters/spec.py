"""Spec: builds an `EnvSpec` and observation trees from the plain values that simulators exchange."""

from __future__ import annotations

from typing import Any

import torch

from powerband.data.types import EnvSpec, ResumeLevel, TensorSpec, Tree, tree_map
from powerband.envs.workers.spaces import Spaces

DTYPES = {"float32": torch.float32, "int64": torch.int64, "uint8": torch.uint8, "bool": torch.bool}
"""Dtypes of stored observations and actions."""


def env_spec(spaces: Spaces, resume: ResumeLevel, overlappable: bool) -> EnvSpec:
    """Converts the spaces of a simulator to an `EnvSpec`.

    Args:
        spaces: Spaces of one environment.
        resume: What a resumed run restores of unfinished episodes: "exact", "replayed" or "truncated".
        overlappable: True if updates can run between `send` and `recv`, because the simulator runs elsewhere.
    """

    def bound(values: tuple[float, ...] | None) -> torch.Tensor | None:
        return None if values is None else torch.tensor(values, dtype=torch.float32).reshape(spaces.action.shape)

    return EnvSpec(
        obs=tree_map(lambda leaf: TensorSpec(leaf.shape, DTYPES[leaf.dtype], leaf.categories, leaf.high), spaces.obs),
        action=TensorSpec(spaces.action.shape, DTYPES[spaces.action.dtype]),
        num_actions=spaces.num_actions,
        action_heads=spaces.heads,
        low=bound(spaces.low),
        high=bound(spaces.high),
        num_agents=spaces.num_agents,
        max_episode_steps=spaces.max_episode_steps,
        resume=resume,
        overlappable=overlappable,
    )


def nested(leaves: list[tuple[tuple[str, ...], Any]]) -> Tree:
    """Builds a nested dict from (keys, leaf) pairs.

    Args:
        leaves: Keys from the outermost to the innermost, and the leaf. A single leaf with the keys () is returned
            without a dict.
    """
    if leaves[0][0] == ():
        return leaves[0][1]
    tree: dict[str, Any] = {}
    for (*parents, last), leaf in leaves:
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = leaf
    return tree
