"""PoolSlice: neighbouring rows of a vector and the workers that step them: all of them, or one half."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import EnvSpec, Step, Tree
from powerband.envs.adapters.spec import nested
from powerband.envs.workers.pool import WorkerPool


class PoolSlice:
    """Consecutive environments of a `WorkerVecEnv` that can be stepped alone: all of them, or one half.

    Each environment is a row of the shared memory, through which the workers exchange actions and results.

    Args:
        worker_pool: Pool of all workers.
        workers: Slice of the workers that step these environments.
        tensors: Shared memory of all environments: name -> tensor with one row per environment.
        spec: Spaces of the environments.
        paths: Keys of each leaf (tensor) of an observation, from the outermost to the innermost.
        episode_metrics: Names of metrics at the end of an episode.
        device: Device of the returned steps.
        pinned: True if the shared memory is page-locked for `device`.

    Attributes:
        rows: Rows of these environments in the shared memory.
        num_envs: Number of these environments N.
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
        """Starts a step of these environments.

        Args:
            action: Actions (N, ...); continuous actions are clipped to the bounds.

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
        """Waits for the step of these environments and returns its result, as `WorkerVecEnv.recv` does."""
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
        """Returns the mask (N,) bool of failed simulators, None if none failed; clears it in the shared memory."""
        if self._worker_pool.failures is None or not self._tensors["lost"].any():
            return None
        lost = self._tensors["lost"].to(self._device, copy=True)
        self._tensors["lost"].zero_()
        return lost

    def _delivered(self, name: str) -> Tensor:
        """Copies the rows of these environments in the shared array `name` to the device."""
        return self._tensors[name].to(self._device, non_blocking=self._pinned, copy=True)

    def _tree(self, kind: str) -> Tree:
        return nested([(path, self._delivered("/".join((kind, *path)))) for path in self._paths])
