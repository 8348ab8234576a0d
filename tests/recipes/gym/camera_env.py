"""An environment with a camera in a dict: move a point onto the bright square of the image."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 12


class CameraReach(gymnasium.Env):
    """The reward is minus the distance to a target that only the camera shows."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self) -> None:
        camera = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.observation_space = spaces.Dict({"camera": camera, "position": spaces.Box(-1, 1, (2,), np.float32)})
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.position, self.cell = np.zeros(2, np.float32), self.np_random.integers(0, SIDE, 2)
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        self.position = np.clip(self.position + 0.3 * action, -1, 1).astype(np.float32)
        distance = float(np.linalg.norm(self.position - (self.cell / (SIDE - 1) * 2 - 1)))
        return self._obs(), -distance, False, False, {}

    def _obs(self) -> dict[str, np.ndarray]:
        image = np.zeros((SIDE, SIDE, 3), np.uint8)
        image[self.cell[0], self.cell[1]] = 255
        return {"camera": image, "position": self.position}


gymnasium.register("CameraReach-v0", entry_point=CameraReach, max_episode_steps=10)
