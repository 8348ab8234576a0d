"""Baselines that see nothing: what any policy has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

from .env import SketchNavEnv
from .world import FORWARD, LEFT, NUM_ACTIONS, RIGHT, STOP

STOPS = 0.01
"""Chance that `ForwardAndTurn` stops, at each step: nothing tells it where the goal is."""
TURNS = (3, 18)
"""Turns of 10 degrees after it has run into something, least and most."""


class RandomWalk:
    """Each action as likely as the others."""

    def __init__(self, seed: int = 0):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, env: SketchNavEnv, obs: object, memory: None) -> tuple[Tensor, None]:
        """(N,) int64 actions."""
        return torch.randint(NUM_ACTIONS, (env.num_envs,), generator=self.generator).to(env.device), None


class ForwardAndTurn:
    """Goes straight on, and turns to a random side by a random angle where it runs into something."""

    def __init__(self, seed: int = 0):
        self.generator = torch.Generator().manual_seed(seed)
        self.left: Tensor | None = None

    def __call__(self, env: SketchNavEnv, obs: object, memory: None) -> tuple[Tensor, None]:
        """(N,) int64 actions."""
        rows, hit = env.num_envs, env.agents.hit.bool().cpu()
        if self.left is None:
            self.left, self.side = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), LEFT)
        drawn = torch.randint(TURNS[0], TURNS[1] + 1, (rows,), generator=self.generator)
        sides = torch.randint(LEFT, RIGHT + 1, (rows,), generator=self.generator)
        begun = hit & (self.left == 0)
        self.left = torch.where(begun, drawn, self.left)
        self.side = torch.where(begun, sides, self.side)
        action = torch.where(self.left > 0, self.side, FORWARD)
        self.left = (self.left - 1).clamp(min=0)
        stop = torch.rand(rows, generator=self.generator) < STOPS
        return torch.where(stop, STOP, action).to(env.device), None
