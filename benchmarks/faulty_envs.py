"""Environments with one fault each, for `faults.py`: importing this module registers their ids in workers too.

Costs are milliseconds in environment variables, so that one id serves a fault and its near-miss.
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
TOKEN = "POWERBAND_FAULT_TOKEN"
"""Path of a file: whoever makes it first is the slow one."""


def _cost_s() -> float:
    return float(os.environ.get(COST_MS, "0")) / 1e3


class SlowPendulum(PendulumEnv):
    """Every step waits for an engine elsewhere."""

    def step(self, action: Any) -> Any:
        time.sleep(_cost_s())
        return super().step(action)


class SlowCartPole(CartPoleEnv):
    """Every step waits for an engine elsewhere."""

    def step(self, action: Any) -> Any:
        time.sleep(_cost_s())
        return super().step(action)


class StragglerPendulum(PendulumEnv):
    """Of all instances of a run, the first one made is slow."""

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
    """Slow on rank 1 alone."""

    def step(self, action: Any) -> Any:
        if os.environ.get("RANK") == "1":
            time.sleep(_cost_s())
        return super().step(action)


class SoftwareRendered(PendulumEnv):
    """Stands for a simulator that draws with llvmpipe: rasterises a picture on the processor at every step."""

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
