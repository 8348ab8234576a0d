"""Failures: end a run on every rank with a message for the user."""

from __future__ import annotations

import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from powerband.core.errors import ConfigError
from powerband.core.machine.out_of_memory import OutOfMemory, out_of_memory_message
from powerband.core.ranks.ranks import TIMEOUT, Ranks, is_peer_failure
from powerband.core.run.checkpoints.checkpoint import resolve_resume
from powerband.core.run.checkpoints.manifest import CheckpointError
from powerband.core.run.nan.nan_guard import NanGuard
from powerband.core.run.nan.nan_report import NonFiniteError, non_finite_error
from powerband.core.stalls.report import STACKS


class FailedRun(Protocol):
    """Interface of a `Run` for this module: the attributes and methods that its functions use."""

    dir: Path
    recipe: str
    device: torch.device
    ranks: Ranks
    guard: NanGuard
    env_steps: int
    grad_steps: int

    def registered(self, name: str) -> Any: ...


def end_if_not_finite(run: FailedRun, inspect: bool = False) -> None:
    """Ends `run` on all ranks if a loss on any rank is not finite (NaN or infinite). All ranks must call it.

    Args:
        run: The run, whose `NanGuard` has recorded the losses.
        inspect: True checks the weights and the replay buffer too, as is done before a checkpoint.

    Raises:
        NonFiniteError: On rank 0; the other ranks exit with the same status and without a message.
    """
    guard, learner, replay = run.guard, run.registered("learner"), run.registered("replay")
    bad = guard.check()
    if inspect and not bad:
        bad = guard.check_state(learner and learner.state_dict(), replay and replay.stored)
    if run.ranks.world_size > 1:
        bad = bool(run.ranks.max_(torch.tensor([bad], dtype=torch.int64, device=run.device)))
    if bad:
        faults = run.ranks.gather(None if guard.fault is None else asdict(guard.fault))
        error = save_non_finite_batch(run, [fault for fault in faults if fault])
        raise error if run.ranks.leads else SystemExit(2)


def save_non_finite_batch(run: FailedRun, faults: list[dict[str, Any]]) -> NonFiniteError:
    """Saves this rank's batch with values that are not finite to ``nan/`` in the run folder.

    Args:
        run: The run that ends.
        faults: The `NonFiniteFault` of each affected rank, as a dict.

    Returns:
        The error that ends the run.
    """
    folder = run.dir / "nan"
    save_error = run.guard.save(folder, run.env_steps, run.grad_steps)
    try:
        path, _ = resolve_resume(str(run.dir))
        last_checkpoint = f"The last checkpoint, of env step {path.name}, was saved before and is valid."
        resume_command = f"powerband train {run.recipe} resume={run.dir}"
    except CheckpointError:
        last_checkpoint = "The run has no checkpoint yet (save_interval is the number of steps between checkpoints)."
        resume_command = ""
    saved_batch = f"The batch and its losses are in {folder}."
    if save_error:
        saved_batch = f"The batch could not be saved ({save_error})."
    learner = run.registered("learner")
    settings = learner and learner.config
    return non_finite_error(faults, run.env_steps, saved_batch, last_checkpoint, resume_command, settings)


def final_error(run: FailedRun, error: BaseException | None) -> BaseException | None:
    """Replaces `error`, with which a run ends, by an error that explains its cause to the user, if that is known.

    Known causes are values that are not finite, the failure of another rank and a lack of memory. Any other `error`,
    and None for a run without an error, is returned unchanged.
    """
    if not isinstance(error, Exception) or isinstance(error, ConfigError):
        return error
    if _has_fault(run):  # actions that are not finite may have made an environment of this rank fail
        assert run.guard.fault is not None
        return save_non_finite_batch(run, [asdict(run.guard.fault)])
    if run.ranks.world_size > 1 and is_peer_failure(error):
        return SystemExit(_peer_failure(run, error))
    if message := out_of_memory_message(error):
        return OutOfMemory(
            f"Rank {run.ranks.rank} of {run.ranks.world_size} ran out of memory outside of an update ({message}). The "
            f"data outside of an update does not fit. Use fewer environments, or smaller rollouts, replays or batches; "
            f"powerband train {run.recipe} --help lists the options that set them."
        )
    return error


def _peer_failure(run: FailedRun, error: BaseException) -> str:
    """Writes the traceback of a collective operation that failed, and returns the message for the user."""
    rank, file = run.ranks.rank, run.dir / STACKS / f"rank{run.ranks.rank}-error.txt"
    reason = "another rank failed; see the error of that rank"
    if TIMEOUT in str(error):
        reason = "the other ranks have not answered for too long"
    try:
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return f"powerband: rank {rank} ends because {reason}."
    return f"powerband: rank {rank} ends because {reason}. Its traceback is in {file}."


def _has_fault(run: FailedRun) -> bool:
    try:
        return run.guard.check()
    except RuntimeError:  # the device failed, and the original error describes that better
        return False
