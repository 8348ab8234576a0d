"""Environments that fail in known ways, and makers of them; imported by worker processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np


class Counting:
    """Obs (1,): steps since the reset. Says what it was reset with, and fails at `step` in the way it is told."""

    def __init__(self, fault: str = "", step: int = 5, length: int = 8) -> None:
        from gymnasium.spaces import Box

        self.fault, self.fault_step, self.length = fault, step, length
        shape = (2,) if fault == "other space" else (1,)
        self.observation_space = Box(-np.inf, np.inf, shape, np.float64)
        self.action_space = Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.seed, self.steps = seed, 0
        self.drift = time.time() % 1000 if self.fault == "forgets its seed" else 0.0
        return np.array([self.drift]), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        if self.steps == self.fault_step:
            self._fail()
        obs = np.zeros(3) if self.fault == "wrong shape" else np.array([self.steps + 0.5 + self.drift])
        over = self.steps == self.length
        info = {"torch": float("torch" in sys.modules), "threads": float(os.environ.get("OMP_NUM_THREADS", 0))}
        return obs, float(action[0]), False, over, info

    def close(self) -> None:
        if self.fault == "close hangs":
            time.sleep(60)

    def _fail(self) -> None:
        if self.fault == "raises":
            raise RuntimeError("the gripper broke")
        if self.fault == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "exits":
            os._exit(3)
        if self.fault == "hangs":
            time.sleep(60)


def refuses() -> Counting:
    raise ValueError("size=0 is below 1")
