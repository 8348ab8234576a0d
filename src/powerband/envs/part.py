"""Part: some workers of a vector and their environments, stepped together: all, or the half whose turn it is."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.data.types import EnvSpec, Step, Tree
from powerband.envs.crew import Crew
from powerband.envs.spec import nested


class Part:
    """Rows of the shared memory that lie side by side, and the workers that step them.

    Args:
        crew: Of the whole vector.
        workers: Which of them step this part.
        tensors: The shared memory of the whole vector, by name.
        spec: Of the environments.
        paths: Where the leaves of an observation lie in its tree.
        figures: Names of what is reported of an ended episode.
        device: Where steps are delivered.
        pinned: The shared memory is page-locked for `device`.

    Attributes:
        rows: Of this part in the whole.
        num_envs: Their number N.
    """

    def __init__(
        self,
        crew: Crew,
        workers: slice,
        tensors: dict[str, Tensor],
        spec: EnvSpec,
        paths: list[tuple[str, ...]],
        figures: tuple[str, ...],
        device: torch.device,
        pinned: bool,
    ) -> None:
        members = crew.workers[workers]
        self.rows = slice(members[0].rows.start, members[-1].rows.stop)
        self.num_envs = self.rows.stop - self.rows.start
        self._crew, self._workers, self._spec = crew, workers, spec
        names = {"action", "reward", "terminated", "truncated", "lost", *(f"figure/{name}" for name in figures)}
        names |= {"/".join((kind, *path)) for kind in ("obs", "final_obs") for path in paths}
        self._tensors = {name: tensors[name][self.rows] for name in names}
        self._paths, self._figures, self._device, self._pinned = paths, figures, device, pinned
        self._copied: torch.cuda.Event | None = None

    def observe(self) -> Tree:
        """Tree (N, ...): what to act on next, a copy."""
        return self._tree("obs")

    def send(self, action: Tensor) -> None:
        """As `WorkerVecEnv.send`, for these rows."""
        shared = self._tensors["action"]
        if action.shape != shared.shape:
            raise ValueError(
                f"action has shape {tuple(action.shape)}, the environments take {tuple(shared.shape)}: "
                f"one row an environment."
            )
        if self._copied is not None:
            self._copied.synchronize()  # the device may still be reading what the workers are about to overwrite
        shared.copy_(action.detach())
        if self._spec.low is not None:
            torch.clamp(shared, self._spec.low, self._spec.high, out=shared)
        self._crew.step(self._workers)

    def recv(self) -> Step:
        """As `WorkerVecEnv.recv`, for these rows."""
        words = self._crew.stepped(self._workers)
        step = Step(
            obs=self._tree("obs"),
            reward=self._delivered("reward"),
            terminated=self._delivered("terminated"),
            truncated=self._delivered("truncated"),
            final_obs=self._tree("final_obs") if b"e" in words else None,
            episode={name: self._delivered(f"figure/{name}") for name in self._figures},
            lost=self._lost(),
        )
        if self._pinned:
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self._device))
        return step

    def _lost(self) -> Tensor | None:
        """Rows whose simulator failed, or None; what the shared memory said of them is cleared."""
        if self._crew.record is None or not self._tensors["lost"].any():
            return None
        found = self._tensors["lost"].to(self._device, copy=True)
        self._tensors["lost"].zero_()
        return found

    def _delivered(self, name: str) -> Tensor:
        """A copy of one array on the device."""
        return self._tensors[name].to(self._device, non_blocking=self._pinned, copy=True)

    def _tree(self, kind: str) -> Tree:
        return nested([(path, self._delivered("/".join((kind, *path)))) for path in self._paths])
