"""Small Gymnasium environments with ids, for tests that start from a command line: env_id=contract.registered:NAME."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

DIALS = (2, 3, 4)


class Dials(gymnasium.Env):
    """Three dials must be set to the numbers that the observation shows; each right one gives 1. Six steps.

    The last choice of the last dial is never shown and never allowed; it costs 100.
    """

    observation_space = spaces.Box(0, 1, (sum(DIALS),), np.float32)
    action_space = spaces.MultiDiscrete(DIALS)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert action.shape == (3,) and action.dtype == np.int64
        reward = float((action == self.shown).sum()) - 100.0 * float(action[2] == 3)
        self.steps += 1
        return self._obs(), reward, self.steps == 6, False, {}

    def action_masks(self) -> np.ndarray:
        mask = np.ones(sum(DIALS), np.int8)
        mask[-1] = 0
        return mask

    def _obs(self) -> np.ndarray:
        self.shown = self.np_random.integers((2, 3, 3))
        return np.concatenate([np.eye(n, dtype=np.float32)[k] for n, k in zip(DIALS, self.shown, strict=True)])


class BitFlip(gymnasium.Env):
    """An action flips one of eight bits; the goal is a bit pattern. Each step costs 1, except the one that reaches it.

    Source: Andrychowicz et al. 2017, section 3.1.
    """

    bits = 8

    def __init__(self) -> None:
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict({name: spaces.MultiBinary(self.bits) for name in names})
        self.action_space = spaces.Discrete(self.bits)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.state, self.goal = self.np_random.integers(0, 2, (2, self.bits), dtype=np.int8)
        return self._obs(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        self.state[action] ^= 1
        reward = float(self.compute_reward(self.state, self.goal, {}))
        return self._obs(), reward, bool(self.compute_terminated(self.state, self.goal, {})), False, {}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: dict) -> np.ndarray:
        return (achieved == desired).all(-1).astype(np.float32) - 1

    def compute_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: dict) -> np.ndarray:
        return (achieved == desired).all(-1)

    def _obs(self) -> dict:
        return {"observation": self.state.copy(), "achieved_goal": self.state.copy(), "desired_goal": self.goal.copy()}


class Reach(gymnasium.Env):
    """A point moves in the plane towards a goal. Its reward function counts pairs of goals, but has no ends."""

    vectorised = True

    def __init__(self) -> None:
        space = spaces.Box(-2, 2, (2,), np.float64)
        self.observation_space = spaces.Dict({n: space for n in ("observation", "achieved_goal", "desired_goal")})
        self.action_space = spaces.Box(-0.5, 0.5, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        self.place = np.clip(self.place + action, -2, 2)
        return self._obs(), float(self.compute_reward(self.place, self.goal, {})), False, False, {}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: dict) -> np.ndarray:
        assert achieved.dtype == np.float64, "goals have the type of the space"
        axis = -1 if self.vectorised else None
        return (np.linalg.norm(achieved - desired, axis=axis) < 0.3).astype(np.float32) - 1

    def compute_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: dict) -> bool:
        return False

    def _obs(self) -> dict:
        return {"observation": self.place, "achieved_goal": self.place, "desired_goal": self.goal}


class ReachOne(Reach):
    """Its reward function accepts one pair of goals only."""

    vectorised = False


gymnasium.register("Dials-v0", Dials)
gymnasium.register("BitFlip-v0", BitFlip, max_episode_steps=BitFlip.bits)
gymnasium.register("Reach-v0", Reach, max_episode_steps=10)
gymnasium.register("ReachOne-v0", ReachOne, max_episode_steps=10)
