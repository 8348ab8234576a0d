"""CameraReach: a planar arm of two joints reaches a target that only its camera shows.

Observations are a dictionary: ``camera`` (36, 36, 3) uint8 shows the target in green and the tip of the arm in red, and
``joints`` (6,) float32 has the cosines, sines and velocities of the joints. The reward is minus the distance between
tip and target. An arm that knows the target reaches it in about ten of the 50 steps.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register

SIDE = 36
"""Height and width of the image in pixels; the smallest that the Nature network accepts."""
LINK = 0.5
"""Length of each of the two links; the camera shows -1..1 in both directions."""
STEP_S, ACCELERATION, DAMPING = 0.05, 40.0, 4.0
BLOB = 2.0
"""Radius of the target and of the tip in the image, in pixels."""


class CameraReach(gymnasium.Env):
    """Episodes of 50 steps; actions (2,) are the accelerations of the joints in -1..1."""

    def __init__(self) -> None:
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        camera = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.observation_space = spaces.Dict({"camera": camera, "joints": spaces.Box(-20.0, 20.0, (6,), np.float32)})
        self.rows, self.columns = np.mgrid[:SIDE, :SIDE]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        self.angles, self.velocity = self.np_random.uniform(-np.pi, np.pi, 2), np.zeros(2)
        radius, angle = self.np_random.uniform(0.3, 0.9), self.np_random.uniform(-np.pi, np.pi)
        self.target = radius * np.array([np.cos(angle), np.sin(angle)])
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict]:
        push = ACCELERATION * np.clip(action, -1, 1) - DAMPING * self.velocity
        self.velocity = np.clip(self.velocity + STEP_S * push, -20, 20)
        self.angles = self.angles + STEP_S * self.velocity
        return self.observe(), -float(np.linalg.norm(self.tip - self.target)), False, False, {}

    @property
    def tip(self) -> np.ndarray:
        """Position (2,) of the end of the arm."""
        first, second = self.angles[0], self.angles.sum()
        return LINK * np.array([np.cos(first) + np.cos(second), np.sin(first) + np.sin(second)])

    def observe(self) -> dict[str, Any]:
        """Returns the image and the state of the joints."""
        camera = np.zeros((SIDE, SIDE, 3), np.uint8)
        for channel, (x, y) in ((0, self.tip), (1, self.target)):
            column, row = (SIDE - 1) * (x + 1) / 2, (SIDE - 1) * (1 - y) / 2
            camera[(self.rows - row) ** 2 + (self.columns - column) ** 2 <= BLOB**2, channel] = 255
        joints = np.concatenate([np.cos(self.angles), np.sin(self.angles), self.velocity])
        return {"camera": camera, "joints": joints.astype(np.float32)}


register("CameraReach-v0", CameraReach, max_episode_steps=50)
