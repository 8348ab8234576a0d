"""Environments that fail in known ways; worker processes import them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


class Counting:
    """Observations (1,) count steps since the reset. The environment fails at `step` in the way that `fault` names."""

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


FAULTS = ("raises", "exits", "is killed", "hangs", "not finite", "reward not finite", "wrong shape", "wrong dtype")


class Numbered(Counting):
    """Observations (1,) are the index of the episode, which the workers pass to a reset. The third step fails."""

    starts_by_episode = True

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.number = float(options["episode"])
        return np.array([self.number]), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        _, *rest = super().step(action)
        return np.array([self.number]), *rest


class Chained:
    """Observations (3,): seed of the episode, steps since its reset, and sum of its actions.

    A transition therefore identifies its environment and its episode.

    Args:
        rare: Average number of steps per failure, drawn by a hash of the episode's seed and the step; 0 never fails.
        faults: Kinds of failures, drawn by the same hash.
        length: Steps of an episode.
    """

    def __init__(self, rare: int = 0, faults: tuple[str, ...] = FAULTS, length: int = 50) -> None:
        from gymnasium.spaces import Box

        self.rare, self.faults, self.length = rare, faults, length
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.seed, self.steps, self.total = seed % 65_536, 0, 0.0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        self.total += float(action[0])
        reward = self.total / 2
        drawn = hash((self.seed, self.steps, 77))
        if self.rare and drawn % self.rare == 0:
            return self._fail(self.faults[drawn // self.rare % len(self.faults)], reward)
        return self._obs(), reward, False, self.steps == self.length, {}

    def close(self) -> None:
        pass

    def _obs(self) -> np.ndarray:
        return np.array([self.seed, self.steps, self.total])

    def _fail(self, fault: str, reward: float) -> Any:
        if fault == "raises":
            raise RuntimeError("the gripper broke")
        if fault == "exits":
            os._exit(3)
        if fault == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hangs":
            time.sleep(600)
        if fault == "reward not finite":
            return self._obs(), float("nan"), False, False, {}
        obs = {"not finite": self._obs() * np.nan, "wrong shape": np.zeros(4), "wrong dtype": self._obs() * 1j}[fault]
        return obs, reward, False, False, {}


class SlowToLoad(Chained):
    def __init__(self, **options: Any) -> None:
        time.sleep(0.7)
        super().__init__(**options)


class Slow(Chained):
    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        time.sleep(0.3)
        return super().step(action)


class SlowToReset(Chained):
    def reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        time.sleep(0.5)
        return super().reset(**options)


class NeverResetsAgain(Chained):
    """Its second reset and all later ones raise `error`."""

    def __init__(self, error: type[Exception], length: int) -> None:
        super().__init__(length=length)
        self.error, self.resets = error, 0

    def reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        self.resets += 1
        if self.resets > 1:
            raise self.error("scene=kitchen is unknown. Write scene=office.")
        return super().reset(**options)


class Rendering(Chained):
    renderer = "llvmpipe"


class FailsToLoadOnce(Counting):
    """Raises while the file `token` exists, and removes it. Its episodes are long."""

    def __init__(self, token: str) -> None:
        super().__init__(length=100)
        try:
            os.unlink(token)
        except FileNotFoundError:
            return
        raise RuntimeError("no display")


class StartsAProgram(Counting):
    """Environment whose simulator is a program of its own, which `close` ends and waits for.

    The first observation is 1 if the program has a PYTHONPATH.
    """

    def __init__(self) -> None:
        super().__init__()
        self.program = subprocess.Popen(["sleep", "60"])

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.array([float("PYTHONPATH" in os.environ)]), {}

    def close(self) -> None:
        self.program.terminate()
        self.program.wait()


class LoadsOnce(Counting):
    """Environment that can be created only once, because it leaves a file behind. Its first step ends the worker."""

    def __init__(self, file: str) -> None:
        if Path(file).exists():
            time.sleep(0.2)
            raise RuntimeError("the license is in use")
        Path(file).touch()
        super().__init__("exits", step=1)
