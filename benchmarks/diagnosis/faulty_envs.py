"""Environments with one fault each, for `faults.py`; the import of this module registers their ids, also in workers.

The environment variable `COST_MS` sets the cost of a step, so a fault and its near-miss use the same id.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv

COST_MS = "POWERBAND_FAULT_MS"
"""Environment variable with the milliseconds per step."""
TOKEN = "POWERBAND_FAULT_TOKEN"
"""Environment variable with the path of a file; the environment that creates it is the slow one."""


def _cost_s() -> float:
    return float(os.environ.get(COST_MS, "0")) / 1e3


class SlowPendulum(PendulumEnv):
    """Every step sleeps, as if the environment waited for a simulator in another process."""

    def step(self, action: Any) -> Any:
        time.sleep(_cost_s())
        return super().step(action)


class SlowCartPole(CartPoleEnv):
    """Every step sleeps, as if the environment waited for a simulator in another process."""

    def step(self, action: Any) -> Any:
        time.sleep(_cost_s())
        return super().step(action)


class StragglerPendulum(PendulumEnv):
    """The first instance of a run sleeps in every step."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        try:
            Path(os.environ[TOKEN]).open("x").close()
            self.slow = True
        except FileExistsError:
            self.slow = False

    def step(self, action: Any) -> Any:
        if self.slow:
            time.sleep(_cost_s())
        return super().step(action)


class StragglerRank(PendulumEnv):
    """Every step on rank 1 sleeps."""

    def step(self, action: Any) -> Any:
        if os.environ.get("RANK") == "1":
            time.sleep(_cost_s())
        return super().step(action)


class SoftwareRendered(PendulumEnv):
    """Imitates a simulator that renders with llvmpipe: every step rasterises an image on the CPU."""

    renderer = "llvmpipe (stand-in)"

    def step(self, action: Any) -> Any:
        end = time.perf_counter() + _cost_s()
        y, x = np.mgrid[0:64, 0:64] / 64.0
        while time.perf_counter() < end:
            np.sqrt((x - np.cos(x)) ** 2 + (y - np.sin(y)) ** 2)
        return super().step(action)


for kind, steps in ((SlowPendulum, 200), (SlowCartPole, 500), (StragglerPendulum, 200), (StragglerRank, 200)):
    gym.register(f"{kind.__name__}-v0", entry_point=kind, max_episode_steps=steps)
gym.register("SoftwareRendered-v0", entry_point=SoftwareRendered, max_episode_steps=200)
