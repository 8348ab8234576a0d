"""Autoreset: adapts vector environments of other libraries to one convention at the end of an episode.

Every step that leaves this file is a real transition of every row. The libraries differ at the end of an episode:

- Gymnasium SAME_STEP: obs belongs to the next episode; the adapter takes the last observation from info.
- Gymnasium DISABLED, and NEXT_STEP of SyncVectorEnv and AsyncVectorEnv: the next step would fail or ignore the action.
  The adapter resets the ended rows at once with a mask.
- EnvPool (next-step): the next step ignores the action, resets, and still reports a reward. The adapter steps the ended
  rows once more, alone, and discards that reward.
- Any other NEXT_STEP vector steps all rows together, so its other rows would move without an action. It is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from powerband.core.errors import ConfigError
from powerband.data.types import tree_map
from powerband.envs.adapters.external import ExternalStep
from powerband.envs.workers.spaces import Spaces


class GymnasiumVector:
    """A `gymnasium.vector.VectorEnv` of N environments as the source of an `ExternalVecEnv`, in any autoreset mode.

    Args:
        vector: The vector environment; closing this source closes it.

    Raises:
        ConfigError: The vector cannot reset single environments, or does not declare its autoreset mode.
    """

    def __init__(self, vector: Any) -> None:
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

        self.vector, self.num_envs = vector, vector.num_envs
        self.spaces = Spaces.from_spaces(
            vector.single_observation_space,
            vector.single_action_space,
            num_agents=None,
            max_episode_steps=getattr(getattr(vector, "spec", None), "max_episode_steps", None),
        )
        self.overlappable = isinstance(vector, AsyncVectorEnv)
        self._seeded_by_row = isinstance(vector.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        mode = vector.metadata.get("autoreset_mode")
        self._same_step = mode == AutoresetMode.SAME_STEP
        # After a masked reset, a worker of AsyncVectorEnv continues only with shared memory (gymnasium 1.4).
        resets_rows = self._seeded_by_row and getattr(vector.unwrapped, "shared_memory", True)
        if not (self._same_step or mode == AutoresetMode.DISABLED or (mode == AutoresetMode.NEXT_STEP and resets_rows)):
            raise ConfigError(
                f"{vector} has the autoreset mode {mode} and cannot reset one environment alone. Every end of an "
                f"episode would cost a step that ignores the action. Create it with "
                f"autoreset_mode=AutoresetMode.SAME_STEP or DISABLED, use shared_memory=True, or step its environments "
                f"with GymVecEnv."
            )
        self._action: np.ndarray | None = None

    def reset(self, seeds: list[int]) -> Any:
        """Resets all environments. A vector that has one random generator for all environments uses the first seed.

        Args:
            seeds: One seed per environment.

        Returns:
            Observations (N, ...) of the N environments.
        """
        obs, _ = self.vector.reset(seed=seeds if self._seeded_by_row else seeds[0])
        self._action = None
        return _as_dicts(obs)

    def send(self, action: np.ndarray) -> None:
        """Starts a step with the actions (N, ...) of all N environments."""
        self._action = action
        if self.overlappable:
            self.vector.step_async(action)

    def recv(self, next_seeds: Callable[[np.ndarray], list[int]]) -> ExternalStep:
        """Waits for the step, and resets the environments whose episode ended.

        Args:
            next_seeds: Function that returns one reset seed per environment for a mask (N,) bool, True for those that
                ended.

        Raises:
            ConfigError: The reset of some environments changed others.
        """
        step = self.vector.step_wait() if self.overlappable else self.vector.step(self._action)
        obs, reward, terminated, truncated, info = step
        obs, ended = _as_dicts(obs), terminated | truncated
        if not ended.any():
            return ExternalStep(obs, reward, terminated, truncated, None, info)
        if self._same_step:
            final_obs = copy.deepcopy(obs)
            for row in np.flatnonzero(ended):
                last_obs = _as_dicts(info["final_obs"][row])
                tree_map(lambda final, last, row=row: final.__setitem__(row, last), final_obs, last_obs)
            return ExternalStep(obs, reward, terminated, truncated, final_obs, info["final_info"])
        final_obs = copy.deepcopy(obs)
        seeds = next_seeds(ended) if self._seeded_by_row else None
        obs = _as_dicts(self.vector.reset(seed=seeds, options={"reset_mask": ended})[0])
        tree_map(lambda now, before: _check_unchanged(now, before, ~ended), obs, final_obs)
        return ExternalStep(obs, reward, terminated, truncated, final_obs, info)

    def close(self) -> None:
        """Closes the vector."""
        self.vector.close()


class EnvPoolVector:
    """A pool of environments with the interface of EnvPool as the source of an `ExternalVecEnv`.

    The interface is ``send(action, env_ids)`` and ``recv()``. `recv` of the pool returns ``obs, reward, terminated,
    truncated, info`` with ``info["env_id"]``, in any order. The step after the end of an episode ignores the action and
    returns the first observation of the next episode. Its reward belongs to no transition and is discarded.

    Args:
        make: Function (seeds) -> pool, with one seed per environment. It is called at each reset, because a pool
            receives its seeds at its creation.
        num_envs: Number of environments N.
        max_episode_steps: Steps after which the task truncates an episode; None without a limit.

    Raises:
        ConfigError: The pool returns fewer environments at a time than it has (`batch_size` below `num_envs`).
    """

    overlappable = True

    def __init__(self, make: Callable[[list[int]], Any], num_envs: int, max_episode_steps: int | None = None) -> None:
        self.make, self.num_envs = make, num_envs
        self.pool = make(list(range(num_envs)))
        if getattr(self.pool, "is_async", False):
            raise ConfigError(
                f"This EnvPool returns fewer than its {num_envs} environments at a time, so those whose episode ended "
                f"cannot be reset alone. Create it with batch_size=num_envs (the default)."
            )
        self.spaces = Spaces.from_spaces(
            self.pool.single_observation_space,
            self.pool.single_action_space,
            num_agents=None,
            max_episode_steps=max_episode_steps,
        )

    def reset(self, seeds: list[int]) -> Any:
        """Creates a new pool with one seed per environment. Returns its first observations (N, ...)."""
        self.pool.close()
        self.pool = self.make(seeds)
        self.pool.async_reset()
        return self._gather(self.num_envs)[0]

    def send(self, action: np.ndarray) -> None:
        """Starts a step with the actions (N, ...) of all N environments."""
        self._action = action
        self.pool.send(action, np.arange(self.num_envs, dtype=np.int32))

    def recv(self, next_seeds: Callable[[np.ndarray], list[int]]) -> ExternalStep:
        """Waits for the step, and resets the environments whose episode ended.

        `next_seeds` is not used, because the pool draws the seeds of resets itself.
        """
        obs, reward, terminated, truncated, info = self._gather(self.num_envs)
        rows = np.flatnonzero(terminated | truncated).astype(np.int32)
        final_obs = None
        if len(rows):
            final_obs = copy.deepcopy(obs)
            self.pool.send(self._action[rows], rows)
            first_obs = self._gather(len(rows))[0]
            tree_map(lambda current, first: current.__setitem__(rows, first), obs, first_obs)
        return ExternalStep(obs, reward, terminated, truncated, final_obs, info)

    def close(self) -> None:
        """Closes the pool."""
        self.pool.close()

    def _gather(self, count: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Receives the results of `count` environments.

        Returns:
            obs, reward, terminated, truncated and info, each sorted by environment.
        """
        parts = [self.pool.recv()]
        if len(parts[0][1]) == count and (np.diff(parts[0][4]["env_id"]) > 0).all():
            return parts[0]  # a pool that waits for all rows returns them in order: no copy is needed
        while sum(len(part[1]) for part in parts) < count:
            parts.append(self.pool.recv())
        order = np.argsort(np.concatenate([part[4]["env_id"] for part in parts]), kind="stable")

        def joined(*pieces: Any) -> np.ndarray:
            return np.concatenate(pieces)[order]

        obs, reward, terminated, truncated = (tree_map(joined, *(part[index] for part in parts)) for index in range(4))
        per_row = [key for key, value in parts[0][4].items() if np.ndim(value) == 1 and len(value) == len(parts[0][1])]
        return obs, reward, terminated, truncated, {key: joined(*(part[4][key] for part in parts)) for key in per_row}


def _as_dicts(obs: Any) -> Any:
    """Converts the tuples in an observation to dicts, whose keys are "0", "1" and so on, as in `Spaces.obs`."""
    if isinstance(obs, tuple):
        return {str(index): _as_dicts(part) for index, part in enumerate(obs)}
    return {key: _as_dicts(part) for key, part in obs.items()} if isinstance(obs, dict) else obs


def _check_unchanged(now: np.ndarray, before: np.ndarray, rows: np.ndarray) -> None:
    """Raises ConfigError if a masked reset changed the observations of `rows` (N,) bool, which it had to keep."""
    if now[rows].tobytes() != before[rows].tobytes():
        raise ConfigError(
            "This vector environment cannot reset one environment alone: a reset with options={'reset_mask': ...} also "
            "changed others. Create it with autoreset_mode=AutoresetMode.SAME_STEP."
        )
