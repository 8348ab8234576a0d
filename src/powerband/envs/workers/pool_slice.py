"""PoolSlice: neighbouring rows of a vector and the workers that step them: all of them, or one half."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import EnvSpec, Step, Tree
from powerband.envs.adapters.spec import nested
from powerband.envs.workers.pool import WorkerPool


class PoolSlice:
    """Neighbouring rows of the shared memory, and the workers that step them.

    Args:
        worker_pool: Pool of all workers of the vector.
        workers: Workers of the pool that step these rows.
        tensors: Shared memory of all rows, by name.
        spec: Spaces of the environments.
        paths: Keys of the leaves of an observation.
        episode_metrics: Names of metrics at the end of an episode.
        device: Device of the steps.
        pinned: True if the shared memory is page-locked for `device`.

    Attributes:
        rows: Rows of this slice in the vector.
        num_envs: Number of rows N.
    """

    def __init__(
        self,
        worker_pool: WorkerPool,
        workers: slice,
        tensors: dict[str, Tensor],
        spec: EnvSpec,
        paths: list[tuple[str, ...]],
        episode_metrics: tuple[str, ...],
        device: torch.device,
        pinned: bool,
    ) -> None:
        members = worker_pool.workers[workers]
        self.rows = slice(members[0].rows.start, members[-1].rows.stop)
        self.num_envs = self.rows.stop - self.rows.start
        self._worker_pool, self._workers, self._spec = worker_pool, workers, spec
        names = {"action", "reward", "terminated", "truncated", "lost", *(f"metric/{name}" for name in episode_metrics)}
        names |= {"/".join((kind, *path)) for kind in ("obs", "final_obs") for path in paths}
        self._tensors = {name: tensors[name][self.rows] for name in names}
        self._paths, self._metrics, self._device, self._pinned = paths, episode_metrics, device, pinned
        self._copied: torch.cuda.Event | None = None

    def observe(self) -> Tree:
        """Returns the current observations (N, ...), a copy."""
        return self._tree("obs")

    def send(self, action: Tensor) -> None:
        """Starts a step of these rows.

        Args:
            action: (N, ...); continuous actions are clipped to the bounds.

        Raises:
            ConfigError: The shape is wrong.
        """
        shared = self._tensors["action"]
        if action.shape != shared.shape:
            raise ConfigError(
                f"The action has shape {tuple(action.shape)}, but these environments need {tuple(shared.shape)}: one "
                f"row per environment."
            )
        if self._copied is not None:
            self._copied.synchronize()  # the device may still read memory that the workers are about to overwrite
        shared.copy_(action.detach())
        if self._spec.low is not None:
            torch.clamp(shared, self._spec.low, self._spec.high, out=shared)
        self._worker_pool.step(self._workers)

    def recv(self) -> Step:
        """Waits for the step of these rows; see `WorkerVecEnv.recv`."""
        ended = self._worker_pool.wait_for_step(self._workers)
        step = Step(
            obs=self._tree("obs"),
            reward=self._delivered("reward"),
            terminated=self._delivered("terminated"),
            truncated=self._delivered("truncated"),
            final_obs=self._tree("final_obs") if ended else None,
            episode={name: self._delivered(f"metric/{name}") for name in self._metrics},
            lost=self._lost(),
        )
        if self._pinned:
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self._device))
        return step

    def _lost(self) -> Tensor | None:
        """Returns the rows (N,) bool whose simulator failed, None if none did; clears them in the shared memory."""
        if self._worker_pool.failures is None or not self._tensors["lost"].any():
            return None
        lost = self._tensors["lost"].to(self._device, copy=True)
        self._tensors["lost"].zero_()
        return lost

    def _delivered(self, name: str) -> Tensor:
        """Copies the array `name` of these rows to the device."""
        return self._tensors[name].to(self._device, non_blocking=self._pinned, copy=True)

    def _tree(self, kind: str) -> Tree:
        return nested([(path, self._delivered("/".join((kind, *path)))) for path in self._paths])
