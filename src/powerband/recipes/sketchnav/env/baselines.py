"""Baselines: policies that ignore the observation; a trained policy must do better."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.env.world import FORWARD, LEFT, NUM_ACTIONS, RIGHT, STOP

STOP_PROBABILITY = 0.01
"""Probability per step that `ForwardAndTurn` stops; it has no information about the goal."""
TURNS = (3, 18)
"""Smallest and largest number of turns of 10 degrees after a collision."""


class RandomWalk:
    """Policy that samples actions uniformly.

    Args:
        seed: Seed of the actions.
    """

    def __init__(self, seed: int = 0):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, env: SketchNavEnv, obs: object, carry: Tensor | None) -> tuple[Tensor, None]:
        """Returns (actions, None): actions (N,) int64 for the N agents of `env`, and no memory."""
        return torch.randint(NUM_ACTIONS, (env.num_envs,), generator=self.generator).to(env.device), None


class ForwardAndTurn:
    """Policy that moves straight ahead, and turns to a random side by a random angle after a collision.

    It stops with a small probability at every step.

    Args:
        seed: Seed of the actions.
    """

    def __init__(self, seed: int = 0):
        self.generator = torch.Generator().manual_seed(seed)
        self.turns_left: Tensor | None = None
        self.side = torch.empty(0, dtype=torch.int64)

    def __call__(self, env: SketchNavEnv, obs: object, carry: Tensor | None) -> tuple[Tensor, None]:
        """Returns (actions, None): actions (N,) int64 for the N agents of `env`, and no memory."""
        rows, hit = env.num_envs, env.agents.hit.bool().cpu()
        if self.turns_left is None:
            self.turns_left, self.side = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), LEFT)
        turns = torch.randint(TURNS[0], TURNS[1] + 1, (rows,), generator=self.generator)
        sides = torch.randint(LEFT, RIGHT + 1, (rows,), generator=self.generator)
        begins = hit & (self.turns_left == 0)
        self.turns_left = torch.where(begins, turns, self.turns_left)
        self.side = torch.where(begins, sides, self.side)
        action = torch.where(self.turns_left > 0, self.side, FORWARD)
        self.turns_left = (self.turns_left - 1).clamp(min=0)
        stop = torch.rand(rows, generator=self.generator) < STOP_PROBABILITY
        return torch.where(stop, STOP, action).to(env.device), None
