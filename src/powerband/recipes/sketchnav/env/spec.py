"""Spec: describes the observations and actions of sketchnav without creating an environment."""

from __future__ import annotations

import torch

from powerband.core.errors import ConfigError
from powerband.data.types import EnvSpec, TensorSpec
from powerband.recipes.sketchnav.env.world import NUM_ACTIONS
from powerband.recipes.sketchnav.settings import Rules, check_pixels


def make_env_spec(pixels: int, rules: Rules, explored: int = 0, expert: bool = False, goal: bool = False) -> EnvSpec:
    """Returns the shapes and types of observations and actions, without reading episodes.

    Args:
        pixels: S, side of the camera image.
        rules: Rules of an episode.
        explored: G, squares along one side of the explored map, which shows what an agent has seen so far; 0 for no
            map.
        expert: Add the action of an expert, which follows the shortest path, to the observation.
        goal: Add the true position of the goal to the observation, for losses of predictions.

    Returns:
        Observations ``rgb`` (3, S, S), ``depth`` (1, S, S), ``gps`` (2,), ``compass`` (1,) and ``episode`` (), and one
        of four actions. A map adds ``explored`` (1, G, G), `expert` adds ``expert`` (), and `goal` adds ``goal`` (2,).

    Raises:
        ConfigError: `pixels` is odd or out of range, or `explored` is odd or negative.
    """
    check_pixels(pixels)
    if explored < 0 or explored % 2:
        raise ConfigError(f"explored={explored} must be an even number of squares. Pass explored=96, or 0 for no map.")
    optional: dict[str, TensorSpec] = {}
    if explored:
        optional |= {"explored": TensorSpec((1, explored, explored), torch.uint8)}
    if goal:
        optional |= {"goal": TensorSpec((2,))}
    if expert:
        optional |= {"expert": TensorSpec((), torch.int64)}
    return EnvSpec(
        obs={
            "rgb": TensorSpec((3, pixels, pixels), torch.uint8),
            "depth": TensorSpec((1, pixels, pixels), torch.uint8),
            "gps": TensorSpec((2,)),
            "compass": TensorSpec((1,)),
            "episode": TensorSpec((), torch.int64),
            **optional,
        },
        action=TensorSpec((), torch.int64),
        num_actions=NUM_ACTIONS,
        max_episode_steps=rules.max_steps,
        resume="exact",
        overlappable=False,
    )
