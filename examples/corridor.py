"""Corridor: an environment of your own that trains without further code.

    PYTHONPATH=examples powerband train gym env_id=corridor:Corridor-v0 algo=ppo env_steps=30000
    PYTHONPATH=examples powerband eval last --trust

Importing this module registers the id; powerband runs the environment in worker processes.
"""

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """A corridor to walk along: action 0 is left, 1 is right. The end is worth 1, and every other step costs 0.01."""

    LENGTH = 10

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(self.LENGTH // 2))
        return self._obs(), {}

    def step(self, action):
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        at_end = self.cell == self.LENGTH
        return self._obs(), 1.0 if at_end else -0.01, at_end, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.cell / self.LENGTH], np.float32)


gymnasium.register("Corridor-v0", entry_point="corridor:Corridor", max_episode_steps=100)
