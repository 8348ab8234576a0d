"""StateRegistry: the parts of a run that have state, saved as one checkpoint of all ranks and restored from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from powerband.core.ranks.ranks import Ranks
from powerband.core.run.checkpoint import CheckpointError, CheckpointWriter, load_checkpoint


class Stateful(Protocol):
    def state_dict(self) -> dict: ...
    def load_state_dict(self, state: dict) -> None: ...


class StateRegistry:
    """Parts by name. A shared one is equal on all ranks and saved once, by the leading one; of others each rank saves
    its own."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._parts: dict[str, tuple[Stateful, bool]] = {}

    def add(self, name: str, part: Stateful, shared: bool) -> None:
        """Takes in `part`; every rank adds the same names."""
        assert name not in self._parts, name
        self._parts[name] = (part, shared)

    def get(self, name: str) -> Any:
        """The part of this name; None where there is none."""
        return self._parts.get(name, (None,))[0]

    def save(self, folder: Path, run: dict, keep: int) -> None:
        """Writes a checkpoint; a collective. The one before it stays until this one is complete.

        Args:
            folder: Of the run.
            run: Its own state, equal on all ranks, with the counters ``env_steps`` and ``grad_steps``.
            keep: Newest checkpoints that stay.
        """
        writer = CheckpointWriter(folder, run["env_steps"])
        own = {name: part.state_dict() for name, (part, shared) in self._parts.items() if not shared}
        hashes = writer.write(f"rank{self.ranks.rank}", own)
        if self.ranks.leads:
            whole = {name: part.state_dict() for name, (part, shared) in self._parts.items() if shared}
            hashes |= writer.write("shared", {**whole, "run": run})
        parts = self.ranks.gather(hashes)
        if self.ranks.leads:
            counters = {name: run[name] for name in ("env_steps", "grad_steps")}
            together = {name: digest for part in parts for name, digest in part.items()}
            writer.commit(together, {"world_size": self.ranks.world_size, **counters}, keep=keep)
        self.ranks.barrier()

    def load(self, path: Path) -> dict:
        """Restores every part from a checkpoint, and returns the run's own state.

        Raises:
            CheckpointError: It belongs to another number of ranks or other shapes.
        """
        shared, meta = load_checkpoint(path, "shared")
        if meta["world_size"] != self.ranks.world_size:
            raise CheckpointError(
                f"{path} was saved by {meta['world_size']} ranks and this run has {self.ranks.world_size}: replay and "
                f"environments are per rank. Resume with {meta['world_size']} ranks."
            )
        own, _ = load_checkpoint(path, f"rank{self.ranks.rank}")
        for name, (part, is_shared) in self._parts.items():
            try:
                part.load_state_dict((shared if is_shared else own)[name])
            except (RuntimeError, KeyError, ValueError) as error:
                raise CheckpointError(
                    f"{path}: its {name} does not fit this configuration ({' '.join(str(error).split())[:300]}). "
                    f"Resume with the sizes and shapes of the saved run, or start a new run_dir."
                ) from error
        return shared["run"]
