"""Environments with a stated cost of a step: they stand for a game engine or a heavy simulator in benchmarks."""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np

from powerband.envs.by_id import make_gym

EPISODE_STEPS = 100


class Tracking:
    """A mass on a line follows a target: force in [-1, 1], two numbers to see, learnt by a small network in seconds.

    Observation (2,) float32: target minus position, velocity. The reward is minus the squared distance, minus a
    hundredth of the squared force; a still mass gets about -33 an episode, a good controller about -3. Truncated
    after 100 steps.
    """

    max_episode_steps = EPISODE_STEPS

    def __init__(self) -> None:
        from gymnasium.spaces import Box

        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Puts the mass at rest at 0 and the target anywhere in [-1, 1]."""
        self.target = float(np.random.default_rng(seed).uniform(-1.0, 1.0))
        self.position = self.velocity = 0.0
        self.steps = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Applies a force for a tenth of a second."""
        force = float(np.clip(action[0], -1.0, 1.0))
        self.velocity = 0.95 * self.velocity + 0.1 * force
        self.position += 0.1 * self.velocity
        self.steps += 1
        reward = -((self.target - self.position) ** 2) - 0.01 * force**2
        return self._obs(), reward, False, self.steps >= EPISODE_STEPS, {}

    def close(self) -> None:
        """Holds nothing."""

    def _obs(self) -> np.ndarray:
        return np.array([self.target - self.position, self.velocity], np.float32)


class SlowEnv:
    """Any environment, made to take at least `step_ms` milliseconds a step.

    Args:
        env: The environment.
        step_ms: Milliseconds of a step, its own work included.
        work: "sleep" leaves the processor free, as an engine on another machine does; "compute" occupies it.
    """

    def __init__(self, env: Any, step_ms: float, work: Literal["sleep", "compute"] = "sleep") -> None:
        if step_ms < 0:
            raise ValueError(f"step_ms={step_ms} is below 0: a step cannot take less than no time. Give milliseconds.")
        self.env, self.step_s, self.work = env, step_ms / 1000, work

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """The environment's own step, and then the rest of the time."""
        end = time.perf_counter() + self.step_s
        result = self.env.step(action)
        if self.work == "sleep":
            time.sleep(max(0.0, end - time.perf_counter()))
        while time.perf_counter() < end:
            pass
        return result


def make_slow(
    step_ms: float, env_id: str | None = None, work: Literal["sleep", "compute"] = "sleep", **env_kwargs: Any
) -> SlowEnv:
    """The environment `env_id` (None: the tracking task) with steps of `step_ms` milliseconds."""
    return SlowEnv(Tracking() if env_id is None else make_gym(env_id, **env_kwargs), step_ms, work)
