"""Startup: joins the ranks, sets up the machine, claims the run folder and writes the configuration of a run."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from powerband import __version__
from powerband.core.config import RunConfig, to_json
from powerband.core.errors import ConfigError
from powerband.core.machine import rendering
from powerband.core.machine.device import device_names, host_facts, set_backend_flags, set_threads
from powerband.core.optim.precision import resolve_precision
from powerband.core.ranks import restarts
from powerband.core.ranks.connections import limit_silence
from powerband.core.ranks.meeting import Meeting
from powerband.core.ranks.ranks import Ranks
from powerband.core.regular_files import read_object, replace_text
from powerband.core.run.folders.folder_agreement import FolderAgreement, LockedFolder
from powerband.core.run.folders.roll_call import CheckSizes, RollCall, call_roll
from powerband.core.run.folders.storage import Storage
from powerband.core.run_folder import claim_run_folder, find_run, remove_unused_run
from powerband.core.stalls.observation import SLOW_BUSY_LIMIT
from powerband.core.stalls.watched_rank import WatchedRank

COLLECTIVE_S = 600.0
"""Least time limit in seconds of a collective operation."""


@dataclass(frozen=True)
class RunStartup:
    """Result of `prepare_run` on one rank.

    Attributes:
        config: The configuration, with a measured precision in place of ``auto``.
        storage: Folders of all ranks.
        own: The run folder of this rank's machine, with its lock.
        ranks: Process group, with the rank and device of this process.
        meeting: The processes of the launchers, among them spares.
        spares: Number of spares.
        watched: Lets another process watch this rank.
        banner: Lines of the banner that the run prints at its start, label -> text.
        notices: Notices of this rank for the user.
        jobs: Ids of the launchers that may restart the ranks; empty if none does.
    """

    config: Any
    storage: Storage
    own: LockedFolder
    ranks: Ranks
    meeting: Meeting
    spares: int
    watched: WatchedRank
    banner: dict[str, str]
    notices: list[str]
    jobs: set[str]


def _claim(settings: RunConfig, recipe: str, restarted: bool, jobs: Collection[str]) -> tuple[Path, bool]:
    """Creates or finds the run folder, as `claim_run_folder` does. Restarted ranks continue in the folder of their run.

    Args:
        settings: Settings of the run.
        recipe: Name of the recipe.
        restarted: True if a launcher has started the ranks again.
        jobs: Ids of the launchers of all ranks.
    """
    if restarted:
        folder = find_run(settings.resume) if settings.resume else Path(settings.run_dir).expanduser()
        taken = (folder / "run.json").exists()  # not on a machine that is new in the run, with a disk of its own
        ours = bool(restarts.jobs_of(folder).intersection(jobs))
        if taken and not ours:
            raise ConfigError(
                f"run_dir={folder} already contains a run of another job, which would be overwritten. Choose another "
                f"run_dir, or continue the run with resume={folder}."
            )
        if ours and not settings.resume:  # the ranks were lost before their first checkpoint
            if any((folder / "checkpoints").glob("[0-9]*")):
                raise ConfigError(
                    f"The checkpoints in {folder} cannot be read, so the restarted run does not begin again, which "
                    f"would delete them. Check the disk, then continue the run with resume={folder}."
                )
            remove_unused_run(folder, created=False)
    return claim_run_folder(settings.resume, settings.run_dir, recipe)


def prepare_run(
    config: Any,
    recipe: str,
    stage: str,
    argv: list[str],
    restarted: bool = False,
    new_folder: str = "",
    check_sizes: CheckSizes | None = None,
) -> RunStartup:
    """Prepares this process for a run: joins the ranks, sets threads and backends, and creates the run folder.

    All ranks must call it. A process that waits as a spare does not return: it exits with the run.

    Args:
        config: Configuration of the recipe; its field ``run`` is a `RunConfig`.
        recipe: Name of the recipe.
        stage: Name of the stage (function of the recipe) that runs.
        argv: The command line after ``powerband``.
        restarted: True if a launcher has started the ranks again, so that they continue the run in their folder.
        new_folder: Folder of a new run without ``run_dir``.
        check_sizes: Checks the sizes for a number of ranks, so that ranks that do not fit wait as spares; None lets
            all of them work.

    Raises:
        ConfigError: The run folder contains another run, is in use, or cannot be written.
    """
    settings: RunConfig = config.run
    watched = WatchedRank(settings.stall_s, settings.on_stall)
    try:
        watched_s = settings.stall_s or RunConfig.stall_s  # without a watch, an evaluation may take as long as with one
        timeout_s = max(COLLECTIVE_S, 2 * SLOW_BUSY_LIMIT * watched_s)
        with watched.progress.waiting:
            meeting = Meeting.from_environment(timeout_s)
            roll = call_roll(meeting, config, restarted, check_sizes, new_folder)
        if meeting.rank not in roll.working:
            watched.close()
            raise SystemExit(0 if meeting.wait_as_spare() else 1)
        return _joined_run(roll, meeting, watched, recipe, stage, argv)
    except BaseException:
        watched.close()
        raise


def _joined_run(
    roll: RollCall, meeting: Meeting, watched: WatchedRank, recipe: str, stage: str, argv: list[str]
) -> RunStartup:
    config, settings = roll.config, roll.config.run
    timeout_s = meeting.timeout.total_seconds()
    ranks = Ranks.from_environment(device_names(settings), timeout_s, watched.progress, meeting, roll.working)
    if restarts.job():  # without restarts, the run waits for a network that works again
        limit_silence()
    watched.progress.set_rank(ranks.rank, ranks.world_size)
    set_threads(settings.threads, ranks.world_size)
    switches = set_backend_flags(settings)
    config, choices = resolve_precision(config, ranks)
    renders = rendering.prepare(ranks.device)  # before any simulator is imported; worker processes inherit it
    jobs = set(filter(None, ranks.gather(restarts.job())))
    claim = partial(_claim, settings, recipe, roll.restarted, frozenset(jobs))
    agreement = FolderAgreement(ranks, settings, claim, jobs, roll.restarted)
    storage, own = agreement.agree()
    facts = {
        "id": uuid.uuid4().hex,
        "recipe": recipe,
        "stage": stage,
        "command": "powerband " + " ".join(argv),
        "powerband": __version__,
        "world_size": ranks.world_size,
        "host": host_facts(),
        "choices": choices,
    }
    if ranks.leads and settings.resume:  # a resume that fails must not change these files
        facts = read_object(own.folder / "run.json")
    facts = ranks.gather(facts if ranks.leads else {})[0]
    if storage.writes and not (own.folder / "run.json").exists():
        if not storage.keeps:
            facts["checkpoints_in"] = storage.places[0]
        replace_text(own.folder / "config.json", to_json(config))
        replace_text(own.folder / "run.json", json.dumps(facts, indent=2))
    storage.remove_unfinished()
    watched.progress.set_folder(str(own.folder))
    ranks.barrier()
    torch.manual_seed(settings.seed)  # equal initial weights on all ranks; later draws come from the noise streams
    banner = dict(choices)
    if storage.has_private_folders:
        banner["folders"] = storage.description
    if ranks.device.type == "cuda" or settings.detect_anomaly:
        banner["switches"] = switches
    if renders.line:
        banner["rendering"] = renders.line
    notices = [*renders.notices, *roll.notices]
    return RunStartup(config, storage, own, ranks, meeting, len(roll.spares), watched, banner, notices, agreement.jobs)
