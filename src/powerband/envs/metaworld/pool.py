"""MetaWorldPool: tasks of Meta-World stepped by EnvPool, one pool a task, as one settled source of `SettledVecEnv`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from powerband.envs.autoreset import PoolSource
from powerband.envs.metaworld.tasks import OBS, pool_id
from powerband.envs.settled import Settled
from powerband.envs.spaces import Leaf, Spaces


def importable() -> bool:
    """True where EnvPool is installed and starts."""
    try:
        import envpool  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


class MetaWorldPool:
    """Rows of several tasks: the rows of one task lie together and are stepped by its own pool.

    Args:
        tasks: The task of each row; rows of one task are neighbours.
        horizon: Steps of an episode, at most 500.
        threads: Threads of all pools together; 0 leaves it to EnvPool.
        coded: Puts the one-hot code of a row's task, by its place among the different `tasks`, behind its observation.
    """

    overlappable = True

    def __init__(self, tasks: list[str], horizon: int, threads: int = 0, coded: tuple[str, ...] = ()) -> None:
        self.num_envs = len(tasks)
        self.rows: list[slice] = []
        self.sources: list[PoolSource] = []
        names = list(dict.fromkeys(tasks))
        for name in names:
            first, count = tasks.index(name), tasks.count(name)
            assert tasks[first : first + count] == [name] * count, "the rows of a task are neighbours"
            self.rows.append(slice(first, first + count))
            self.sources.append(PoolSource(_maker(name, horizon, threads), count, horizon))
        self.code = np.stack([np.eye(len(coded))[coded.index(name)] for name in tasks]) if coded else None
        own = self.sources[0].spaces
        width = OBS + len(coded)
        self.spaces = Spaces(**{**own.__dict__, "obs": Leaf((width,), own.obs.dtype)})
        self.succeeded = np.zeros(self.num_envs, bool)

    def reset(self, seeds: list[int]) -> np.ndarray:
        self.succeeded[:] = False
        return self._coded(np.concatenate([s.reset(seeds[rows]) for s, rows in self._parts()]))

    def send(self, action: np.ndarray) -> None:
        for source, rows in self._parts():
            source.send(action[rows])

    def recv(self, next_seeds: Callable[[np.ndarray], list[int]]) -> Settled:
        parts = [source.recv(next_seeds) for source, _ in self._parts()]
        if len(parts) == 1 and self.code is None and parts[0].final_obs is None:
            self.succeeded |= parts[0].info["success"] > 0
            return parts[0]._replace(info={"success": self.succeeded})
        obs, reward, terminated, truncated = (np.concatenate([part[index] for part in parts]) for index in range(4))
        self.succeeded |= np.concatenate([part.info["success"] for part in parts]) > 0
        info = {"success": self.succeeded.astype(np.float32)}
        ended = terminated | truncated
        self.succeeded[ended] = False
        final = None
        if ended.any():
            final = self._coded(np.concatenate([p.obs if p.final_obs is None else p.final_obs for p in parts]))
        return Settled(self._coded(obs), reward, terminated, truncated, final, info)

    def close(self) -> None:
        for source in self.sources:
            source.close()

    def _parts(self) -> list[tuple[PoolSource, slice]]:
        return list(zip(self.sources, self.rows, strict=True))

    def _coded(self, obs: np.ndarray) -> np.ndarray:
        return obs if self.code is None else np.concatenate([obs, self.code], 1)


def _maker(task: str, horizon: int, threads: int) -> Callable[[list[int]], Any]:
    """What makes a pool of one task with a seed a row."""

    def make(seeds: list[int]) -> Any:
        import envpool

        return envpool.make_gymnasium(
            pool_id(task),
            num_envs=len(seeds),
            num_threads=threads,
            seed=seeds,
            max_episode_steps=horizon,
            partially_observable=False,
        )

    return make
