"""Gymnasium environments that give values that are not finite at a stated step; registered by importing this file."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Failing(gymnasium.Env):
    """Obs (3,) uniform noise, reward minus the squared action; episodes of 20 steps.

    Args:
        fault: "nan reward", "inf obs", "huge reward", "breaks" (raises), "dies" (its process), or "" for none.
        step: Step (of this environment, over all episodes) at which it happens, once.
        discrete: Takes one of two actions.
        only_env: Only the environment whose first seed is the first of the process does so; -1 lets all.
    """

    def __init__(self, fault: str = "", step: int = 50, discrete: bool = False) -> None:
        self.fault, self.fault_step, self.discrete = fault, step, discrete
        self.observation_space = Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(2) if discrete else Box(-1.0, 1.0, (1,), np.float32)
        self.total = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.random, self.steps = np.random.default_rng(seed), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.total += 1
        self.steps += 1
        reward, obs = float(-np.square(action).sum()), self._obs()
        here = os.environ.get("FAILING_RANK", os.environ.get("RANK", "0")) == os.environ.get("RANK", "0")
        if self.total == self.fault_step and here:
            if self.fault == "nan reward":
                reward = float("nan")
            if self.fault == "inf obs":
                obs[1] = np.inf
            if self.fault == "huge reward":
                reward = 1e30
            if self.fault == "breaks":
                raise RuntimeError("the gripper broke")
            if self.fault == "dies":
                os._exit(3)
        return obs, reward, False, self.steps >= 20, {}

    def _obs(self) -> np.ndarray:
        return self.random.uniform(-1, 1, 3).astype(np.float32)


for fault in ("", "nan reward", "inf obs", "huge reward", "breaks", "dies"):
    for discrete in (False, True):
        name = "".join(word.capitalize() for word in fault.split()) or "Healthy"
        gymnasium.register(
            f"{name}{'Discrete' if discrete else ''}-v0", Failing, kwargs={"fault": fault, "discrete": discrete}
        )
