"""Fakes: small environments with known rewards, which a loop, adapter or algorithm misses if it breaks the protocol.

- Recall: only the first observation has the cue. Without a carry, or with one that outlives its episode, the mean
  return is far below 1.
- Sites: agents share sites; the allowed actions depend on the positions of the others; a masked action costs 1000.
- NextStepPool: autoresets at the next step and reports a reward of 1000 there; every real step has a reward of 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

DELAY = 4
"""Steps of an episode of Recall."""
NUM_AGENTS, NUM_SITES, SITES_STEPS = 3, 5, 12
RESET_ROW_REWARD = 1000.0


class Recall:
    """Shows a cue of -1 or +1 once. After DELAY steps, the action 0 or 1 must match it: reward 1, else -1."""

    max_episode_steps = DELAY

    def __init__(self) -> None:
        from gymnasium.spaces import Box, Discrete

        self.observation_space = Box(-1, 1, (2,), np.float64)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.cue = int(np.random.default_rng(seed).integers(2))
        self.steps = 0
        return np.array([2.0 * self.cue - 1.0, 0.0]), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        over = self.steps == DELAY
        reward = (1.0 if action == self.cue else -1.0) if over else 0.0
        return np.array([0.0, self.steps / DELAY]), reward, over, False, {"success": float(over and reward > 0)}

    def close(self) -> None:
        pass


class Sites:
    """NUM_AGENTS agents move between NUM_SITES sites; the sites of other agents are masked.

    The reward of an agent is 1 at the site of its own number, 0 at other sites, and -1000 for a masked action.
    ``state`` is the occupancy, ``own`` the position of each agent, ``image`` is uint8, and ``step`` counts from 3.
    """

    num_agents = NUM_AGENTS
    max_episode_steps = SITES_STEPS

    def __init__(self) -> None:
        from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

        extra = {"image": Box(0, 255, (2, 2, 3), np.uint8), "step": Discrete(SITES_STEPS + 1, start=3)}
        self.observation_space = Dict(
            {
                "own": Box(0, 1, (NUM_AGENTS, NUM_SITES), np.float32),
                "state": Box(0, NUM_AGENTS, (NUM_SITES,), np.float32),
                "action_mask": MultiBinary((NUM_AGENTS, NUM_SITES)),
                "extra": Dict(extra),
            }
        )
        self.action_space = MultiDiscrete([NUM_SITES] * NUM_AGENTS)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, Any], dict]:
        self.generator = np.random.default_rng(seed)
        self.sites = self.generator.permutation(NUM_SITES)[:NUM_AGENTS]
        self.steps = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], np.ndarray, bool, bool, dict]:
        allowed = self._mask()[np.arange(NUM_AGENTS), action]
        reward = np.where(allowed, (action == np.arange(NUM_AGENTS)).astype(np.float64), -1000.0)
        self.sites = np.where(allowed, action, self.sites)
        self.steps += 1
        return self._obs(), reward, False, self.steps == SITES_STEPS, {}

    def close(self) -> None:
        pass

    def _mask(self) -> np.ndarray:
        mask = np.ones((NUM_AGENTS, NUM_SITES), bool)
        for agent in range(NUM_AGENTS):
            mask[agent, np.delete(self.sites, agent)] = False
        return mask

    def _obs(self) -> dict[str, Any]:
        occupancy = np.bincount(self.sites, minlength=NUM_SITES).astype(np.float32)
        extra = {"image": self.generator.integers(0, 256, (2, 2, 3), np.uint8), "step": 3 + self.steps}
        own = np.eye(NUM_SITES, dtype=np.float32)[self.sites]
        return {"own": own, "state": occupancy, "action_mask": self._mask(), "extra": extra}


class NextStepPool:
    """A pool like EnvPool: ``send(action, env_ids)``, ``recv()``; the step after an end ignores the action and resets.

    The first observation of an episode contains its number of steps, 3 to 9. Real steps have a reward of 1, reset rows
    one of 1000. Rows are returned in reversed order. Episodes of odd length terminate; the others are truncated.
    """

    def __init__(self, seeds: list[int]) -> None:
        from gymnasium.spaces import Box, Discrete

        self.single_observation_space = Box(0, 10, (2,), np.float32)
        self.single_action_space = Discrete(3)
        self.generators = [np.random.default_rng(seed) for seed in seeds]
        self.over = [True] * len(seeds)
        self.length, self.steps = np.zeros(len(seeds), np.int64), np.zeros(len(seeds), np.int64)
        self.sent: list[int] = []

    def async_reset(self) -> None:
        self.over = [True] * len(self.over)
        self.send(np.zeros(len(self.over), np.int64), np.arange(len(self.over)))

    def send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        assert action.dtype == np.int64 and not self.sent, "send was called twice without recv"
        self.sent = [int(row) for row in env_ids]

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        rows, self.sent = self.sent[::-1], []
        return_rows = [self._step(row) for row in rows]
        obs, reward, terminated, truncated = (np.array(column) for column in zip(*return_rows, strict=True))
        return obs.astype(np.float32), reward.astype(np.float32), terminated, truncated, {"env_id": np.array(rows)}

    def close(self) -> None:
        pass

    def _step(self, row: int) -> tuple[list[float], float, bool, bool]:
        if self.over[row]:
            self.length[row], self.steps[row], self.over[row] = self.generators[row].integers(3, 10), 0, False
            return [float(self.length[row]), 0.0], RESET_ROW_REWARD, False, False
        self.steps[row] += 1
        self.over[row] = bool(self.steps[row] == self.length[row])
        odd, over = bool(self.length[row] % 2), self.over[row]
        return [float(self.length[row]), float(self.steps[row])], 1.0, over and odd, over and not odd
