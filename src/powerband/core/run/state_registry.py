"""StateRegistry: the parts of a run that have state; saves them as one checkpoint of all ranks and restores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from powerband.core.ranks.ranks import Ranks
from powerband.core.run.checkpoint import CheckpointWriter, load_checkpoint
from powerband.core.run.manifest import CheckpointError


class Stateful(Protocol):
    """Part of a run whose state checkpoints save and restore, such as a learner."""

    def state_dict(self) -> dict: ...
    def load_state_dict(self, state: dict) -> None: ...


class StateRegistry:
    """Saves and restores the parts of a run that have state, such as learner and replay buffer, as one checkpoint.

    Each rank saves its own parts. Shared parts are equal on all ranks, and only rank 0 saves them.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._parts: dict[str, tuple[Stateful, bool]] = {}

    def add(self, name: str, part: Stateful, shared: bool) -> None:
        """Adds a part. Every rank must add the same names.

        Args:
            name: Name of the part in checkpoints.
            part: Object with ``state_dict`` and ``load_state_dict``.
            shared: True if the part is equal on all ranks, so that it is saved once.
        """
        assert name not in self._parts, name
        self._parts[name] = (part, shared)

    def get(self, name: str) -> Any:
        """The part of this name; None if the name is unknown."""
        return self._parts.get(name, (None,))[0]

    def save(self, folder: Path, run: dict, keep: int) -> None:
        """Writes a checkpoint. All ranks must call it. The previous checkpoint stays until this one is complete.

        Args:
            folder: The run folder.
            run: State of the run, equal on all ranks, with the counters ``env_steps`` (which name the checkpoint) and
                ``grad_steps``.
            keep: Number of newest checkpoints to keep.
        """
        writer = CheckpointWriter(folder, run["env_steps"])
        own = {name: part.state_dict() for name, (part, shared) in self._parts.items() if not shared}
        hashes = writer.write(f"rank{self.ranks.rank}", own)
        if self.ranks.leads:
            common = {name: part.state_dict() for name, (part, shared) in self._parts.items() if shared}
            hashes |= writer.write("shared", {**common, "run": run})
        hashes_by_rank = self.ranks.gather(hashes)
        if self.ranks.leads:
            counters = {name: run[name] for name in ("env_steps", "grad_steps")}
            files = {name: digest for hashes in hashes_by_rank for name, digest in hashes.items()}
            writer.commit(files, {"world_size": self.ranks.world_size, **counters}, keep=keep)
        self.ranks.barrier()

    def load(self, path: Path) -> dict:
        """Restores every part from the checkpoint in the folder `path`.

        Returns:
            The value of `run` that `save` received.

        Raises:
            CheckpointError: A file is damaged, or the number of ranks or the shapes differ from those of this run.
        """
        shared, manifest = load_checkpoint(path, "shared")
        if manifest.world_size != self.ranks.world_size:
            raise CheckpointError(
                f"{path} was saved by {manifest.world_size} ranks, but this run has {self.ranks.world_size}. The state "
                f"of replay and environments is per rank. Resume with {manifest.world_size} ranks."
            )
        own, _ = load_checkpoint(path, f"rank{self.ranks.rank}")
        for name, (part, is_shared) in self._parts.items():
            saved = shared if is_shared else own
            load_state(part, saved.get(name), name, path)
        return shared["run"]


def restore_learner(path: Path, learner: Stateful) -> None:
    """Restores a learner from the checkpoint in the folder `path`, without a run, for example for an evaluation.

    Raises:
        CheckpointError: A file is damaged, or the shapes differ from those of the learner.
    """
    load_state(learner, load_checkpoint(path, "shared")[0].get("learner"), "learner", path)


def load_state(part: Any, state: Any, name: str, path: Path) -> None:
    """Loads a saved state into a part, such as a network, whose shapes may differ.

    Args:
        part: Object with ``load_state_dict``.
        state: The saved state; None if the file has none.
        name: Name of the part, for the message.
        path: File or folder of the state, for the message.

    Raises:
        CheckpointError: The state does not fit.
    """
    try:
        part.load_state_dict(state)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the saved {name} does not fit this configuration ({' '.join(str(error).split())[:300]}). "
            f"Use the sizes and shapes of the saved run, or choose a new run_dir."
        ) from error
