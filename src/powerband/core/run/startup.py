"""Startup: joins the ranks, sets up the machine, claims the run folder and writes the configuration of a run."""

from __future__ import annotations

import json
import os
import platform
import uuid
from dataclasses import dataclass
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
from powerband.core.ranks.ranks import Ranks
from powerband.core.run.run_lock import RunLock, sees_lock
from powerband.core.run_folder import claim_run_folder, refuse_links, remove_unused_run
from powerband.core.stalls.observation import SLOW_BUSY_LIMIT
from powerband.core.stalls.watched_rank import WatchedRank

COLLECTIVE_S = 600.0
"""Time limit in seconds of a collective operation, if no process watches the ranks."""


@dataclass(frozen=True)
class RunStartup:
    """Result of `prepare_run` on one rank.

    Attributes:
        config: The configuration, with a measured precision in place of ``auto``.
        folder: The run folder.
        created_folder: True if this rank created the folder.
        lock: Lock of the folder on rank 0; None on other ranks.
        ranks: Process group, with the rank and device of this process.
        watched: Lets another process watch this rank.
        banner: Lines of the banner that the run prints at its start, label -> text.
        notices: Notices of this rank for the user.
        jobs: Ids of the launchers that may restart the ranks; empty if none does.
    """

    config: Any
    folder: Path
    created_folder: bool
    lock: RunLock | None
    ranks: Ranks
    watched: WatchedRank
    banner: dict[str, str]
    notices: list[str]
    jobs: set[str]


def _common_folder(ranks: Ranks, claimed: Path | str, lock: RunLock | None) -> Path:
    """Returns the run folder on this rank, after every rank has found the lock of rank 0 in it.

    Raises:
        ConfigError: A machine does not see the folder of rank 0; on rank 0 and on that machine. Other ranks exit.
    """
    own = [str(claimed), os.path.abspath(claimed), "" if lock is None else lock.token, platform.node()]
    machines = ranks.gather(own)
    relative, absolute, token, leader = machines[0]
    folder = Path(relative if own[3] == leader else absolute)
    found = ranks.gather(lock is not None or sees_lock(folder, token))
    if all(found):
        return folder
    if lock is None and found[ranks.rank]:
        raise SystemExit(2)
    blind = sorted({machines[rank][3] for rank, seen in enumerate(found) if not seen})
    raise ConfigError(
        f"run_dir={absolute} on {leader} is not the same folder on {', '.join(blind)}. All machines of a run write "
        f"into one folder. Choose a run_dir on a disk that all of them share, such as NFS."
    )


def _claim(settings: RunConfig, recipe: str, restarted: bool, jobs: set[str]) -> tuple[Path, bool]:
    """Creates or finds the run folder, as `claim_run_folder` does. Restarted ranks continue in the folder of their run.

    Args:
        settings: Settings of the run.
        recipe: Name of the recipe.
        restarted: True if a launcher has started the ranks again.
        jobs: Ids of the launchers of all ranks.
    """
    if restarted:
        folder = Path(settings.resume or settings.run_dir).expanduser()
        if not jobs & restarts.jobs_of(folder):
            raise ConfigError(
                f"run_dir={folder} already contains a run of another job, which would be overwritten. Choose another "
                f"run_dir, or continue the run with resume={folder}."
            )
        if not settings.resume:  # the ranks were lost before their first checkpoint
            remove_unused_run(folder, created=False)
    return claim_run_folder(settings.resume, settings.run_dir, recipe)


def prepare_run(config: Any, recipe: str, stage: str, argv: list[str], restarted: bool = False) -> RunStartup:
    """Prepares this process for a run: joins the ranks, sets threads and backends, and creates the run folder.

    All ranks must call it.

    Args:
        config: Configuration of the recipe; its field ``run`` is a `RunConfig`.
        recipe: Name of the recipe.
        stage: Name of the stage (function of the recipe) that runs.
        argv: The command line after ``powerband``.
        restarted: True if a launcher has started the ranks again, so that they continue the run in their folder.

    Raises:
        ConfigError: The run folder contains another run, is in use, or cannot be written.
    """
    settings: RunConfig = config.run
    watched = WatchedRank(settings.stall_s, settings.on_stall)
    try:
        return _joined_run(config, watched, recipe, stage, argv, restarted)
    except BaseException:
        watched.close()
        raise


def _joined_run(
    config: Any, watched: WatchedRank, recipe: str, stage: str, argv: list[str], restarted: bool
) -> RunStartup:
    settings: RunConfig = config.run
    timeout_s = max(COLLECTIVE_S, 2 * SLOW_BUSY_LIMIT * settings.stall_s)
    ranks = Ranks.from_environment(device_names(settings), timeout_s, watched.progress)
    set_threads(settings.threads, ranks.world_size)
    switches = set_backend_flags(settings)
    config, choices = resolve_precision(config, ranks)
    renders = rendering.prepare(ranks.device)  # before any simulator is imported; worker processes inherit it
    jobs = set(filter(None, ranks.gather(restarts.job())))
    claimed, created = _claim(settings, recipe, restarted, jobs) if ranks.leads else ("", False)
    lock = None
    if isinstance(claimed, Path):
        refuse_links(claimed)
        if restarted:
            jobs |= restarts.jobs_of(claimed)  # launchers that were lost, and may come back
        lock = RunLock(claimed, jobs)
    try:
        folder = _common_folder(ranks, claimed, lock)
    except (ConfigError, SystemExit):  # on all ranks
        if lock is not None:
            lock.release()
            remove_unused_run(lock.folder, created)
        ranks.barrier()  # a rank that still ends its part of the group aborts if the others are gone
        ranks.close()
        raise
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
    if ranks.leads and not settings.resume:  # a resume that fails must not change these files
        (folder / "config.json").write_text(to_json(config))
        (folder / "run.json").write_text(json.dumps(facts, indent=2))
    watched.progress.set_folder(str(folder))
    ranks.barrier()
    torch.manual_seed(settings.seed)  # equal initial weights on all ranks; later draws come from the noise streams
    banner = dict(choices)
    if ranks.device.type == "cuda" or settings.detect_anomaly:
        banner["switches"] = switches
    if renders.line:
        banner["rendering"] = renders.line
    return RunStartup(config, folder, created, lock, ranks, watched, banner, list(renders.notices), jobs)
