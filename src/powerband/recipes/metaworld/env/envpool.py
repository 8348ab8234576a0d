"""EnvPoolMetaWorld: steps tasks of Meta-World with EnvPool, one pool per task; `ExternalVecEnv` wraps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from powerband.envs.adapters.autoreset import EnvPoolVector
from powerband.envs.adapters.external import ExternalStep
from powerband.envs.workers.spaces import Leaf, Spaces
from powerband.recipes.metaworld.env.tasks import OBS, envpool_task_id


class EnvPoolMetaWorld:
    """N simulations (rows) of one or several tasks. The rows of one task are neighbours, and one pool steps them.

    Args:
        tasks: The task of each row; rows of one task are neighbours.
        horizon: Steps of an episode, at most 500.
        threads: Threads of each pool; 0 leaves the number to EnvPool.
        one_hot_tasks: Tasks of the one-hot task code that is appended to observations; empty for no code.
    """

    overlappable = True

    def __init__(self, tasks: list[str], horizon: int, threads: int = 0, one_hot_tasks: tuple[str, ...] = ()) -> None:
        self.num_envs = len(tasks)
        self.rows: list[slice] = []
        self.sources: list[EnvPoolVector] = []
        for name in dict.fromkeys(tasks):
            first, count = tasks.index(name), tasks.count(name)
            assert tasks[first : first + count] == [name] * count, "rows of one task must be neighbours"
            self.rows.append(slice(first, first + count))
            self.sources.append(EnvPoolVector(_pool_maker(name, horizon, threads), count, horizon))
        self.one_hot_code = (
            np.stack([np.eye(len(one_hot_tasks))[one_hot_tasks.index(name)] for name in tasks])
            if one_hot_tasks
            else None
        )
        own = self.sources[0].spaces
        width = OBS + len(one_hot_tasks)
        self.spaces = Spaces(**{**own.__dict__, "obs": Leaf((width,), own.obs.dtype)})
        self.succeeded = np.zeros(self.num_envs, bool)

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Resets all rows with one seed per row. Returns the observations (N, F entries)."""
        self.succeeded[:] = False
        return self._with_code(np.concatenate([source.reset(seeds[rows]) for source, rows in self._parts()]))

    def send(self, action: np.ndarray) -> None:
        """Starts a step of all pools with actions (N, 4)."""
        for source, rows in self._parts():
            source.send(action[rows])

    def recv(self, next_seeds: Callable[[np.ndarray], list[int]]) -> ExternalStep:
        """Waits for all pools and returns their step; rows that ended are reset.

        Args:
            next_seeds: Function from a mask (N,) bool of the rows that ended to N seeds for the reset, one per row.

        Returns:
            The step. ``info["success"]`` (N,) is 1 once the task was solved in the episode.
        """
        steps = [source.recv(next_seeds) for source, _ in self._parts()]
        if len(steps) == 1 and self.one_hot_code is None and steps[0].final_obs is None:
            self.succeeded |= steps[0].info["success"] > 0
            return steps[0]._replace(info={"success": self.succeeded})
        obs, reward, terminated, truncated = (np.concatenate([step[index] for step in steps]) for index in range(4))
        self.succeeded |= np.concatenate([step.info["success"] for step in steps]) > 0
        info = {"success": self.succeeded.astype(np.float32)}
        ended = terminated | truncated
        self.succeeded[ended] = False
        final = None
        if ended.any():
            final = self._with_code(
                np.concatenate([step.obs if step.final_obs is None else step.final_obs for step in steps])
            )
        return ExternalStep(self._with_code(obs), reward, terminated, truncated, final, info)

    def close(self) -> None:
        """Closes all pools."""
        for source in self.sources:
            source.close()

    def _parts(self) -> list[tuple[EnvPoolVector, slice]]:
        """Returns the pool of each task with the rows that it steps."""
        return list(zip(self.sources, self.rows, strict=True))

    def _with_code(self, obs: np.ndarray) -> np.ndarray:
        return obs if self.one_hot_code is None else np.concatenate([obs, self.one_hot_code], 1)


def _pool_maker(task: str, horizon: int, threads: int) -> Callable[[list[int]], Any]:
    """Returns a function from a list of seeds to an EnvPool pool of `task` with one simulation per seed."""

    def make(seeds: list[int]) -> Any:
        import envpool

        return envpool.make_gymnasium(
            envpool_task_id(task),
            num_envs=len(seeds),
            num_threads=threads,
            seed=seeds,
            max_episode_steps=horizon,
            partially_observable=False,
        )

    return make
