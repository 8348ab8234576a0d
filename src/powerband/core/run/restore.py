"""Restore: loads the checkpoint of the setting ``resume`` into a run that begins its loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from powerband.core.config import RunConfig, to_json
from powerband.core.config.saved import changed_options
from powerband.core.errors import ConfigError
from powerband.core.ranks.ranks import Ranks
from powerband.core.regular_files import replace_text
from powerband.core.run.checkpoints.checkpoint_files import find_checkpoint
from powerband.core.run.checkpoints.manifest import StateMismatchError
from powerband.core.run.folders.owned_folder import OwnedFolder
from powerband.core.run.folders.storage import Storage
from powerband.core.run.state_registry import StateRegistry
from powerband.core.telemetry.console import Console, duration_text
from powerband.core.telemetry.journal import Journal
from powerband.core.telemetry.metrics import Metrics

ANNOUNCED_S = 2.0
"""Seconds of preparation, such as drawn episodes and compilation, from which a run with a time limit reports them."""


class RestoredRun(Protocol):
    """Interface of a `Run` for this module: the attributes and methods that `restore` uses."""

    config: Any
    settings: RunConfig
    dir: Path
    storage: Storage
    owned_folder: OwnedFolder
    registry: StateRegistry
    evaluations: Any
    ranks: Ranks
    journal: Journal
    metrics: Metrics
    console: Console
    env_steps: int
    grad_steps: int
    running: bool
    ranks_changed: bool

    @property
    def prepared_s(self) -> float: ...
    def restart_clocks(self) -> None: ...
    def load_state_dict(self, state: dict) -> None: ...


def restore(run: RestoredRun) -> bool:
    """Restores all registered parts of a run, its counters, clocks and logs; `Run.restore` describes it."""
    settings, note = run.settings, run.console.note
    if run.prepared_s > ANNOUNCED_S and settings.time_limit_s:
        spent = duration_text(run.prepared_s)
        note(f"preparation took {spent}; time_limit_s={settings.time_limit_s:g} begins now")
    if not settings.resume:
        run.restart_clocks()
        return False
    path, notices = find_checkpoint(run.storage, settings.resume)
    for notice in notices:
        note(notice)
    changed = _changed(run)
    try:
        state, saved_ranks = run.registry.load(path)
    except StateMismatchError as error:
        if not changed:
            raise
        raise StateMismatchError(f"{error} Options that this resume changes: {', '.join(changed)}.") from error
    if run.storage.has_private_folders:
        run.ranks.barrier()  # until all ranks of a machine have read what it has received
        run.storage.remove_unfinished()
    run.restart_clocks()  # after reading, which is no training, and before the state continues the clocks
    run.load_state_dict(state)
    run.ranks_changed = saved_ranks != run.ranks.world_size
    if run.ranks_changed:
        note(
            f"saved by {saved_ranks} rank(s), continued by {run.ranks.world_size}: sizes over all ranks stay, "
            f"environments start new episodes, and stored transitions are distributed over the ranks"
        )
    if run.storage.writes:
        replace_text(run.dir / "config.json", to_json(run.config))
    run.owned_folder.write_processes()
    for line in run.metrics.rewind(run.journal.logged[0], run.env_steps):
        note(line)
    run.evaluations.resumed()
    note(f"resumed from {path} at {run.env_steps} env steps, {run.grad_steps} updates")
    if changed:
        note(f"this resume changes {', '.join(changed)}")
    run.running = run.env_steps < settings.env_steps  # it may have been killed after its last checkpoint
    if not run.running:
        note(f"env_steps={settings.env_steps} is reached. A larger env_steps continues the run.")
    return True


def _changed(run: RestoredRun) -> list[str]:
    """Lists the options that a resume changes; none on ranks that do not write, or if config.json is unreadable."""
    if not run.storage.writes:
        return []
    try:
        return changed_options(run.dir, run.config)
    except ConfigError:  # the checkpoint is complete without this file, which the resume writes again
        return []
