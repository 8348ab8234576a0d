"""Small Gymnasium environments with ids, for tests that start from a command line: env_id=contract.registered:NAME."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

DIALS = (2, 3, 4)


class Dials(gymnasium.Env):
    """Three dials must be set to the numbers that the observation shows; each right one gives 1. Six steps.

    The last choice of the last dial is never shown and never allowed; it costs 100.
    """

    observation_space = spaces.Box(0, 1, (sum(DIALS),), np.float32)
    action_space = spaces.MultiDiscrete(DIALS)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert action.shape == (3,) and action.dtype == np.int64
        reward = float((action == self.shown).sum()) - 100.0 * float(action[2] == 3)
        self.steps += 1
        return self._obs(), reward, self.steps == 6, False, {}

    def action_masks(self) -> np.ndarray:
        mask = np.ones(sum(DIALS), np.int8)
        mask[-1] = 0
        return mask

    def _obs(self) -> np.ndarray:
        self.shown = self.np_random.integers((2, 3, 3))
        return np.concatenate([np.eye(n, dtype=np.float32)[k] for n, k in zip(DIALS, self.shown, strict=True)])


gymnasium.register("Dials-v0", Dials)
