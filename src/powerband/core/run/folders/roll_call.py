"""Roll call: before a run starts, its processes agree on the run that they continue, on their order and on spares.

Machines may have disks of their own, may be new in a run, or may have been started with other words. Rank 0 becomes a
process that has the newest checkpoint, and all ranks take their settings from it.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from powerband.core.config import RunConfig, from_json, to_json
from powerband.core.config.sizes import largest_valid
from powerband.core.ranks.loopback import is_one_machine
from powerband.core.ranks.meeting import Meeting
from powerband.core.run.checkpoints.checkpoint import resolve_resume
from powerband.core.run.checkpoints.manifest import CheckpointError

OF_A_MACHINE = ("gpus", "nproc", "threads", "nnodes", "rdzv_endpoint", "max_restarts", "run_dir", "resume")
"""Settings of a run that each machine keeps, because they concern its devices and its disk."""
CheckSizes = Callable[[Any, int], None]
"""Function (configuration, number of ranks) that raises ConfigError if a size does not divide."""


@dataclass(frozen=True)
class RollCall:
    """Result of a roll call on one process.

    Attributes:
        config: Configuration of the run, with this machine's own devices and folders.
        restarted: True if the ranks continue the run of a launcher of theirs, after some were lost.
        working: The processes that work, in the order of their ranks.
        spares: Description of each process that waits.
        notices: Messages for the user.
    """

    config: Any
    restarted: bool
    working: tuple[int, ...]
    spares: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


def call_roll(
    meeting: Meeting, config: Any, restarted: bool, check_sizes: CheckSizes | None, new_folder: str = ""
) -> RollCall:
    """Exchanges what the processes know, and decides on all of them alike. All must call it.

    Args:
        meeting: The processes that a launcher has started.
        config: Configuration of this process.
        restarted: True if this process has found the run of its launcher in its folder.
        check_sizes: Checks the sizes for a number of ranks, so that ranks that do not fit wait as spares. None lets all
            of them work.
        new_folder: Folder of a new run without ``run_dir``; that of rank 0 counts.

    Raises:
        ConfigError: The sizes are valid for no number of ranks.
    """
    step = -1 if is_one_machine() else _newest_step(config.run)
    own = {"host": platform.node(), "restarted": restarted, "step": step, "config": to_json(config), "new": new_folder}
    every = meeting.exchange("roll call", own)
    newest = max(each["step"] for each in every)
    order = sorted(range(meeting.size), key=lambda rank: (every[rank]["step"] != newest, rank))
    leader = every[order[0]]
    shared = config
    if own["config"] != leader["config"]:
        shared = _of_leader(config, from_json(type(config), leader["config"], "settings of rank 0"))
    if leader["new"] and not shared.run.run_dir and not shared.run.resume:
        shared = replace(shared, run=replace(shared.run, run_dir=leader["new"]))
    notices = [] if any(each["restarted"] for each in every) else _differences(every, order)
    count = meeting.size if check_sizes is None else largest_valid(partial(check_sizes, shared), meeting.size)
    spares = tuple(f"process {rank} on {every[rank]['host']}" for rank in order[count:])
    if spares:
        text = f"{count} of {meeting.size} ranks work, because the sizes do not divide by more"
        notices.append(f"{text}. Spares until a rank is lost: {', '.join(spares)}")
    return RollCall(shared, any(each["restarted"] for each in every), tuple(order[:count]), spares, tuple(notices))


def _newest_step(settings: RunConfig) -> int:
    """Environment steps of the newest undamaged checkpoint that this process would continue; -1 without one."""
    if not settings.resume:
        return -1
    try:
        return int(resolve_resume(settings.resume)[0].name)
    except CheckpointError:  # rank 0 reports it
        return -1


def _of_leader(own: Any, leader: Any) -> Any:
    """Returns the configuration of rank 0 with this machine's own devices and folders."""
    run = replace(leader.run, **{name: getattr(own.run, name) for name in OF_A_MACHINE})
    if not run.resume and not run.run_dir:
        return replace(leader, run=replace(run, resume=leader.run.resume, run_dir=leader.run.run_dir))
    if bool(leader.run.resume) != bool(run.resume):
        folder = run.resume or run.run_dir
        run = replace(run, resume=folder, run_dir="") if leader.run.resume else replace(run, resume="", run_dir=folder)
    return replace(leader, run=run)


def _differences(every: list[dict[str, Any]], order: list[int]) -> list[str]:
    """Returns a notice for each process that was started with other settings than rank 0."""
    flat = [_flat(json.loads(each["config"])) for each in every]
    found = []
    for rank in order[1:]:
        other = {name: value for name, value in flat[rank].items() if flat[order[0]].get(name) != value}
        if other:
            words = ", ".join(f"{name}={value}" for name, value in list(other.items())[:5])
            found.append(f"process {rank} on {every[rank]['host']} was started with {words}; settings of rank 0 count")
    return found


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the settings that all machines share by qualified name."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        elif prefix != "run." or name not in OF_A_MACHINE:
            found[prefix + name] = value
    return found
