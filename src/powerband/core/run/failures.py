"""Ending: how a run ends that cannot go on: in words for whoever started it, on every rank."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from powerband.core.errors import ConfigError
from powerband.core.machine.out_of_memory import OutOfMemory, out_of_memory_message
from powerband.core.ranks.ranks import Ranks, is_peer_failure
from powerband.core.run import checkpoint
from powerband.core.run.nan_guard import NanGuard
from powerband.core.run.nan_report import NonFiniteError, non_finite_error


class FailedRun(Protocol):
    """The part of a `Run` that is needed to explain how it ended."""

    dir: Path
    recipe: str
    device: torch.device
    ranks: Ranks
    guard: NanGuard
    env_steps: int
    grad_steps: int

    def registered(self, name: str) -> Any: ...


def end_if_not_finite(run: FailedRun, inspect: bool = False) -> None:
    """Ends `run` on all ranks where one has seen what is not finite. A collective.

    Args:
        run: Whose guard is asked.
        inspect: Look at weights and at the replay too, as before a checkpoint.

    Raises:
        NonFiniteError: On the leading rank; the others end quietly with the same exit status.
    """
    guard, learner, replay = run.guard, run.registered("learner"), run.registered("replay")
    bad = guard.check()
    if inspect and not bad:
        bad = guard.check_state(learner and learner.state_dict(), replay and replay.stored)
    if run.ranks.world_size > 1:
        bad = bool(run.ranks.max_(torch.tensor([bad], dtype=torch.int64, device=run.device)))
    if bad:
        faults = run.ranks.gather(None if guard.fault is None else asdict(guard.fault))
        found = save_non_finite_batch(run, [fault for fault in faults if fault])
        raise found if run.ranks.leads else SystemExit(2)


def save_non_finite_batch(run: FailedRun, faults: list[dict[str, Any]]) -> NonFiniteError:
    """Saves this rank's batch under ``nan/`` and words the end of the run."""
    folder = run.dir / "nan"
    failed = run.guard.save(folder, run.env_steps, run.grad_steps)
    try:
        path, _ = checkpoint.resolve_resume(str(run.dir))
        good = f"Nothing was saved since; the checkpoint of env step {path.name} is good."
        again = f"powerband train {run.recipe} resume={run.dir}"
    except checkpoint.CheckpointError:
        good, again = "There is no checkpoint yet (save_interval writes them along the way).", ""
    where = f"The batch could not be saved ({failed})." if failed else f"The batch and its losses lie in {folder}."
    learner = run.registered("learner")
    settings = learner and learner.config
    return non_finite_error(faults, run.env_steps, where, good, again, settings)


def final_error(run: FailedRun, error: BaseException | None) -> BaseException | None:
    """What the run ends with in place of `error`, where that is only what came of something else."""
    if not isinstance(error, Exception) or isinstance(error, ConfigError):
        return error
    if _looks_bad(run):  # an environment that was handed such actions, say; on this rank alone
        return save_non_finite_batch(run, [asdict(run.guard.fault)])
    if run.ranks.world_size > 1 and is_peer_failure(error):
        return SystemExit(f"powerband: rank {run.ranks.rank} ends because another one did; that one says why.")
    if said := out_of_memory_message(error):
        return OutOfMemory(
            f"rank {run.ranks.rank} of {run.ranks.world_size} ran out of memory ({said}), not in an update: what is "
            f"held for each environment and step does not fit. Lower num_envs, or num_steps where there are rollouts."
        )
    return error


def _looks_bad(run: FailedRun) -> bool:
    try:
        return run.guard.check()
    except RuntimeError:  # the device itself is out of order: then the error that is under way tells more
        return False
