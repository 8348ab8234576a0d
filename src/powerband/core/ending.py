"""Ending: how a run ends that cannot go on: in words for whoever started it, on every rank."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from powerband.core import checkpoint
from powerband.core.config import ConfigError
from powerband.core.distributed import lost_a_rank
from powerband.core.not_finite import NotFinite, explained
from powerband.core.room import OutOfRoom, ran_out

if TYPE_CHECKING:
    from powerband.core.run import Run


def end_if_not_finite(run: Run, inspect: bool = False) -> None:
    """Ends `run` on all ranks where one has seen what is not finite. A collective.

    Args:
        run: Whose guard is asked.
        inspect: Look at weights and at the replay too, as before a checkpoint.

    Raises:
        NotFinite: On the leading rank; the others end quietly with the same exit status.
    """
    guard, learner, replay = run.guard, run.part("learner"), run.part("replay")
    bad = guard.look()
    if inspect and not bad:
        bad = guard.inspect(learner and learner.state_dict(), getattr(replay, "held", None))
    if run.ranks.world_size > 1:
        bad = bool(run.ranks.max_(torch.tensor([bad], dtype=torch.int64, device=run.device)))
    if bad:
        faults = run.ranks.gather(None if guard.fault is None else asdict(guard.fault))
        found = not_finite(run, [fault for fault in faults if fault])
        raise found if run.ranks.leads else SystemExit(2)


def not_finite(run: Run, faults: list[dict[str, Any]]) -> NotFinite:
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
    settings = getattr(run.part("learner"), "config", None)
    return explained(faults, run.env_steps, where, good, again, settings)


def final_error(run: Run, error: BaseException | None) -> BaseException | None:
    """What the run ends with in place of `error`, where that is only what came of something else."""
    if not isinstance(error, Exception) or isinstance(error, ConfigError):
        return error
    if _looks_bad(run):  # an environment that was handed such actions, say; on this rank alone
        return not_finite(run, [asdict(run.guard.fault)])
    if run.ranks.world_size > 1 and lost_a_rank(error):
        return SystemExit(f"powerband: rank {run.ranks.rank} ends because another one did; that one says why.")
    if said := ran_out(error):
        return OutOfRoom(
            f"rank {run.ranks.rank} of {run.ranks.world_size} ran out of memory ({said}), not in an update: what is "
            f"held for each environment and step does not fit. Lower num_envs, or num_steps where there are rollouts."
        )
    return error


def _looks_bad(run: Run) -> bool:
    try:
        return run.guard.look()
    except RuntimeError:  # the device itself is out of order: then the error that is under way tells more
        return False
