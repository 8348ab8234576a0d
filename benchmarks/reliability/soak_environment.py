"""Pendulum whose reward is not a number while a file exists, for `soak.py`; the import of this module registers it."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.pendulum import PendulumEnv

FILE = "POWERBAND_SOAK_NAN"
"""Environment variable with the path of the file."""


class SoakPendulum(PendulumEnv):
    """Pendulum, but the reward is NaN while the file exists."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, float("nan") if os.path.exists(os.environ.get(FILE, "")) else reward, terminated, truncated, info


gym.register("Soak-v0", SoakPendulum, max_episode_steps=200)
