"""Autoreset: what foreign vector sources do when an episode ends, and how each is settled.

- gymnasium SAME_STEP: obs is the next episode's already; the last one is taken out of info.
- gymnasium DISABLED, and NEXT_STEP of SyncVectorEnv and AsyncVectorEnv: the next step would be refused, or would ignore
  the action; the rows that ended are reset at once, by a mask.
- EnvPool (next-step): the next step ignores the action, resets, and reports a reward all the same; the rows that ended
  are stepped once more, alone, and that reward is dropped.
- Any other NEXT_STEP vector: all rows must be stepped together, so the others would move without an action; refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from powerband.data.types import tree_map
from powerband.envs.settled import Settled
from powerband.envs.spaces import Spaces


class GymnasiumSource:
    """A `gymnasium.vector.VectorEnv` in any of its three autoreset modes.

    Args:
        vector: The vector environment; it is closed with this source.

    Raises:
        ValueError: A vector whose autoreset cannot be settled, or is not stated.
    """

    def __init__(self, vector: Any) -> None:
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

        self.vector, self.num_envs = vector, vector.num_envs
        self.spaces = Spaces.between(
            vector.single_observation_space,
            vector.single_action_space,
            num_agents=None,
            max_episode_steps=getattr(getattr(vector, "spec", None), "max_episode_steps", None),
        )
        self.overlappable = isinstance(vector, AsyncVectorEnv)
        self._seeded_by_row = isinstance(vector.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        mode = vector.metadata.get("autoreset_mode")
        self._same_step = mode == AutoresetMode.SAME_STEP
        # A worker of AsyncVectorEnv forgets that its row has ended only where memory is shared (gymnasium 1.4).
        resets_rows = self._seeded_by_row and getattr(vector.unwrapped, "shared_memory", True)
        if not (self._same_step or mode == AutoresetMode.DISABLED or (mode == AutoresetMode.NEXT_STEP and resets_rows)):
            raise ValueError(
                f"{vector} autoresets as {mode}: its rows cannot be reset alone, so every end of an episode "
                f"would cost a step whose action is ignored. Make it with "
                f"autoreset_mode=AutoresetMode.SAME_STEP or DISABLED, use shared_memory=True, or step its "
                f"environments with GymVecEnv."
            )

    def reset(self, seeds: list[int]) -> Any:
        """Resets all rows; a vector that draws its rows from one generator takes the first seed."""
        obs, _ = self.vector.reset(seed=seeds if self._seeded_by_row else seeds[0])
        self._action = None
        return obs

    def send(self, action: np.ndarray) -> None:
        self._action = action
        if self.overlappable:
            self.vector.step_async(action)

    def recv(self, next_seeds: Callable[[np.ndarray], list[int]]) -> Settled:
        step = self.vector.step_wait() if self.overlappable else self.vector.step(self._action)
        obs, reward, terminated, truncated, info = step
        ended = terminated | truncated
        if not ended.any():
            return Settled(obs, reward, terminated, truncated, None, info)
        if self._same_step:
            final_obs = copy.deepcopy(obs)
            for row in np.flatnonzero(ended):
                tree_map(lambda final, last, row=row: final.__setitem__(row, last), final_obs, info["final_obs"][row])
            return Settled(obs, reward, terminated, truncated, final_obs, info["final_info"])
        final_obs = copy.deepcopy(obs)
        seeds = next_seeds(ended) if self._seeded_by_row else None
        obs, _ = self.vector.reset(seed=seeds, options={"reset_mask": ended})
        tree_map(lambda now, before: _unmoved(now, before, ~ended), obs, final_obs)
        return Settled(obs, reward, terminated, truncated, final_obs, info)

    def close(self) -> None:
        self.vector.close()


class PoolSource:
    """An EnvPool-like source: ``send(action, env_ids)``, ``recv()``, next-step autoreset.

    Its `recv` gives ``obs, reward, terminated, truncated, info`` with ``info["env_id"]``, in any order. The step after
    an end ignores the action and gives the first observation of the next episode; whatever reward it reports belongs
    to no transition and is dropped.

    Args:
        make: ``make(seeds) -> source`` with one seed a row; called at each reset, as a pool is seeded when it is made.
        num_envs: Number of rows.
        max_episode_steps: Time limit of the task, where it has one.

    Raises:
        ValueError: A pool that gives back fewer rows at a time than it has (`batch_size` below `num_envs`).
    """

    overlappable = True

    def __init__(self, make: Callable[[list[int]], Any], num_envs: int, max_episode_steps: int | None = None) -> None:
        self.make, self.num_envs = make, num_envs
        self.pool = make(list(range(num_envs)))
        if getattr(self.pool, "is_async", False):
            raise ValueError(
                f"the pool gives back fewer rows at a time than its {num_envs}: the rows that ended could not be reset "
                f"alone. Make it with batch_size=num_envs (the default)."
            )
        self.spaces = Spaces.between(
            self.pool.single_observation_space,
            self.pool.single_action_space,
            num_agents=None,
            max_episode_steps=max_episode_steps,
        )

    def reset(self, seeds: list[int]) -> Any:
        self.pool.close()
        self.pool = self.make(seeds)
        self.pool.async_reset()
        return self._gather(self.num_envs)[0]

    def send(self, action: np.ndarray) -> None:
        self._action = action
        self.pool.send(action, np.arange(self.num_envs, dtype=np.int32))

    def recv(self, next_seeds: Callable[[np.ndarray], list[int]]) -> Settled:
        obs, reward, terminated, truncated, info = self._gather(self.num_envs)
        rows = np.flatnonzero(terminated | truncated).astype(np.int32)
        final_obs = None
        if len(rows):
            final_obs = copy.deepcopy(obs)
            self.pool.send(self._action[rows], rows)
            first_obs = self._gather(len(rows))[0]
            tree_map(lambda here, first: here.__setitem__(rows, first), obs, first_obs)
        return Settled(obs, reward, terminated, truncated, final_obs, info)

    def close(self) -> None:
        self.pool.close()

    def _gather(self, count: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """The next `count` rows, in the order of their environments."""
        parts = [self.pool.recv()]
        if len(parts[0][1]) == count and (np.diff(parts[0][4]["env_id"]) > 0).all():
            return parts[0]  # all of them and in order, as of a pool that waits for all: nothing is copied
        while sum(len(part[1]) for part in parts) < count:
            parts.append(self.pool.recv())
        order = np.argsort(np.concatenate([part[4]["env_id"] for part in parts]), kind="stable")

        def joined(*pieces: Any) -> np.ndarray:
            return np.concatenate(pieces)[order]

        obs, reward, terminated, truncated = (tree_map(joined, *(part[index] for part in parts)) for index in range(4))
        per_row = [key for key, value in parts[0][4].items() if np.ndim(value) == 1 and len(value) == len(parts[0][1])]
        return obs, reward, terminated, truncated, {key: joined(*(part[4][key] for part in parts)) for key in per_row}


def _unmoved(now: np.ndarray, before: np.ndarray, rows: np.ndarray) -> None:
    if now[rows].tobytes() != before[rows].tobytes():
        raise ValueError(
            "a reset of some rows (options={'reset_mask': ...}) changed the others: this vector environment cannot "
            "reset rows alone. Make it with autoreset_mode=AutoresetMode.SAME_STEP."
        )
