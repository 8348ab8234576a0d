"""StateRegistry: the parts of a run that have state; saves them as one checkpoint of all ranks and restores them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from powerband.core.ranks.ranks import Ranks
from powerband.core.run.checkpoints.checkpoint import in_memory, load_checkpoint
from powerband.core.run.checkpoints.checkpoint_files import CollectiveSave
from powerband.core.run.checkpoints.manifest import CheckpointError, StateMismatchError
from powerband.core.run.folders.storage import Storage


class Stateful(Protocol):
    """Part of a run whose state checkpoints save and restore, such as a learner.

    A part with the attribute ``copies_state = True`` keeps no tensor of the state that it loads, only copies. It
    receives tensors that are mapped from the file, so that a large replay needs no additional memory.
    """

    def state_dict(self) -> dict: ...
    def load_state_dict(self, state: dict) -> None: ...


Redistribute = Callable[[list[dict]], None]
"""Restores a part on this rank from its states on all saved ranks, if the checkpoint has another number of ranks."""


class StateRegistry:
    """Saves and restores the parts of a run that have state, such as learner and replay buffer, as one checkpoint.

    Each rank saves its own parts. Shared parts are equal on all ranks, and only rank 0 saves them.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._parts: dict[str, tuple[Stateful, bool]] = {}
        self._redistribute: dict[str, Redistribute] = {}

    def add(self, name: str, part: Stateful, shared: bool, redistribute: Redistribute | None = None) -> None:
        """Adds a part. Every rank must add the same names.

        Args:
            name: Name of the part in checkpoints.
            part: Object with ``state_dict`` and ``load_state_dict``.
            shared: True if the part is equal on all ranks, so that it is saved once.
            redistribute: Restores the part from a checkpoint with another number of ranks. None refuses such a
                checkpoint, unless the part is shared.
        """
        assert name not in self._parts, name
        self._parts[name] = (part, shared)
        if redistribute is not None:
            self._redistribute[name] = redistribute

    def get(self, name: str) -> Any:
        """The part of this name; None if the name is unknown."""
        return self._parts.get(name, (None,))[0]

    def save(
        self, storage: Storage, run: dict, keep: int, export: Callable[[], dict[str, bytes]] | None = None
    ) -> None:
        """Writes a checkpoint. All ranks must call it. The previous checkpoint stays until this one is complete.

        Args:
            storage: Folders of the ranks.
            run: State of the run, equal on all ranks, with the counters ``env_steps`` (which name the checkpoint) and
                ``grad_steps``.
            keep: Number of newest checkpoints to keep.
            export: Returns further files of the checkpoint, path inside it -> content; called on rank 0.
        """
        checkpoint = CollectiveSave(storage, run["env_steps"])
        try:
            own = {name: part.state_dict() for name, (part, shared) in self._parts.items() if not shared}
            checkpoint.add(f"rank{self.ranks.rank}", own)
            if self.ranks.leads:
                common = {name: part.state_dict() for name, (part, shared) in self._parts.items() if shared}
                checkpoint.add("shared", {**common, "run": run})
                checkpoint.export(export() if export is not None else {})
            checkpoint.commit({name: run[name] for name in ("env_steps", "grad_steps")}, keep)
        except BaseException:
            checkpoint.discard()
            raise
        self.ranks.barrier()

    def load(self, path: Path) -> tuple[dict, int]:
        """Restores every part from the checkpoint in the folder `path`.

        Returns:
            The value of `run` that `save` received, and the number of ranks that saved the checkpoint.

        Raises:
            CheckpointError: A file is damaged, the shapes differ from those of this run, or a part cannot continue on
                another number of ranks.
        """
        shared, manifest = load_checkpoint(path, "shared")
        saved_ranks = manifest.world_size
        same_ranks = saved_ranks == self.ranks.world_size
        if not same_ranks:
            self._check_redistribution(path, saved_ranks)
        ranks = [self.ranks.rank] if same_ranks else range(saved_ranks)
        own = [load_checkpoint(path, f"rank{rank}", mapped=True)[0] for rank in ranks]
        for name, (part, is_shared) in self._parts.items():
            if is_shared:
                load_state(part, shared.get(name), name, path)
                continue
            states = [state.get(name) for state in own]
            if not getattr(part, "copies_state", False):
                states = in_memory(states)
            if same_ranks:
                load_state(part, states[0], name, path)
            else:
                load_with(self._redistribute[name], states, name, path)
        return shared["run"], saved_ranks

    def _check_redistribution(self, path: Path, saved_ranks: int) -> None:
        fixed = [name for name, (_, shared) in self._parts.items() if not shared and name not in self._redistribute]
        if fixed:
            raise CheckpointError(
                f"{path} was saved by {saved_ranks} ranks, but this run has {self.ranks.world_size}. The state of "
                f"{', '.join(fixed)} cannot be distributed over another number of ranks. Resume with {saved_ranks} "
                f"ranks."
            )


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
        StateMismatchError: The state does not fit.
    """
    load_with(part.load_state_dict, state, name, path)


def load_with(load: Callable[[Any], object], state: Any, name: str, path: Path) -> None:
    """Calls ``load(state)``, with the errors of `load_state`."""
    try:
        load(state)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise StateMismatchError(
            f"{path}: the saved {name} does not fit this configuration ({reason}). "
            f"Use the sizes and shapes of the saved run, or start a new run without resume."
        ) from error
