"""Environments with a configurable step time, which stand in for game engines and heavy simulators in benchmarks."""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np

from powerband.envs.adapters.by_id import make_gym

EPISODE_STEPS = 100


class TrackingEnv:
    """A mass on a line that follows a target. A small network learns the task in seconds.

    The observation is (2,) float32: target minus position, and velocity. The action is a force in [-1, 1]. The reward
    is minus the squared distance, minus a hundredth of the squared force. A resting mass gets about -33 per episode,
    a good controller about -3. Episodes are truncated after 100 steps.
    """

    max_episode_steps = EPISODE_STEPS

    def __init__(self) -> None:
        from gymnasium.spaces import Box

        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Puts the resting mass at 0 and draws the target from [-1, 1].

        Returns:
            (observation, empty dict).
        """
        self.target = float(np.random.default_rng(seed).uniform(-1.0, 1.0))
        self.position = self.velocity = 0.0
        self.steps = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Applies a force for 0.1 s of simulated time.

        Args:
            action: Force of shape (1,), clipped to [-1, 1].

        Returns:
            (observation, reward, terminated, truncated, empty dict); terminated is always false.
        """
        force = float(np.clip(action[0], -1.0, 1.0))
        self.velocity = 0.95 * self.velocity + 0.1 * force
        self.position += 0.1 * self.velocity
        self.steps += 1
        reward = -((self.target - self.position) ** 2) - 0.01 * force**2
        return self._obs(), reward, False, self.steps >= EPISODE_STEPS, {}

    def close(self) -> None:
        """Does nothing: the environment has no resources."""

    def _obs(self) -> np.ndarray:
        return np.array([self.target - self.position, self.velocity], np.float32)


class SlowEnv:
    """Wrapper that makes a step of any environment take at least `step_ms` milliseconds.

    Args:
        env: The environment.
        step_ms: Milliseconds per step, including the step of the environment itself.
        work: ``sleep`` leaves the CPU free, like an engine on another machine; ``compute`` occupies it.
    """

    def __init__(self, env: Any, step_ms: float, work: Literal["sleep", "compute"] = "sleep") -> None:
        if step_ms < 0:
            raise ValueError(f"step_ms={step_ms} is below 0. Write the milliseconds per step, 0 or more.")
        self.env, self.step_s, self.work = env, step_ms / 1000, work

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Steps the environment and returns its result once at least `step_ms` milliseconds have passed."""
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
    """Creates an environment whose steps take at least `step_ms` milliseconds.

    Args:
        step_ms: Milliseconds per step.
        env_id: Gymnasium id; None means `TrackingEnv`.
        work: ``sleep`` or ``compute``, see `SlowEnv`.
        env_kwargs: Keyword arguments of the environment `env_id`.
    """
    return SlowEnv(TrackingEnv() if env_id is None else make_gym(env_id, env_kwargs=env_kwargs), step_ms, work)
