"""Run folder: creates it, finds it from a path inside it, and records the processes that write into it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError
from powerband.core.regular_files import read_object, replace_text

PROCESSES = "processes.json"
"""File of a run folder with the processes of the run and, once it has ended, the reason."""
PICKLE_SUFFIXES = (".pth", ".pt", ".ckpt", ".pkl")


def find_run(target: str, root: Path = Path("runs")) -> Path:
    """Finds the run folder (which contains the files of one training run) that `target` names.

    Args:
        target: The folder, a path inside it, or ``last`` for the newest run in `root`.
        root: Folder that contains the run folders.

    Raises:
        ConfigError: `target` does not exist, is a pickle, or is not inside a run folder.
    """
    if target == "last":
        runs = sorted(root.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
        if not runs:
            raise ConfigError(f"'last': the folder {root.absolute()} contains no run. Name a run folder.")
        return runs[-1].parent
    path = Path(target).expanduser()
    if path.suffix in PICKLE_SUFFIXES:
        raise ConfigError(
            f"{target} is a pickle, which can execute code when it is loaded, and is therefore not supported. "
            f"Name a run folder of powerband; its checkpoints are safetensors."
        )
    if not path.exists():
        raise ConfigError(
            f"{target} does not exist. Name a run folder, a checkpoint or a file in one of these, or write last for "
            f"the newest run."
        )
    for folder in (path.absolute(), *path.absolute().parents):
        if (folder / "run.json").exists() and (folder / "config.json").exists():
            return folder
    raise ConfigError(
        f"{target} is not inside a run folder (a folder with a run.json). Name a run folder, or write last for the "
        f"newest run."
    )


def claim_run_folder(resume: str, run_dir: str, recipe: str) -> tuple[Path, bool]:
    """Creates the folder of a new run, or finds the folder of a resumed run.

    Args:
        resume: Run to continue, as in `find_run`; "" starts a new run.
        run_dir: Folder of a new run; "" means ``runs/<recipe>-<time>``.
        recipe: Name of the recipe.

    Returns:
        The folder, and True if it did not exist before.

    Raises:
        ConfigError: The folder contains another run or files of its names, or cannot be written.
    """
    if resume:
        return find_run(resume), False
    folder = Path(run_dir or f"runs/{recipe}-{time.strftime('%Y%m%d-%H%M%S')}").expanduser()
    if (folder / "run.json").exists():
        raise ConfigError(
            f"run_dir={folder} already contains a run, which would be overwritten. "
            f"Choose another run_dir, or continue the run with resume={folder}."
        )
    if found := _in_the_way(folder):
        raise ConfigError(
            f"run_dir={folder} contains {found}, which the run would overwrite or remove. Choose another run_dir."
        )
    try:
        created = create_folder(folder)
        probe = folder / ".writable"
        probe.write_text("yes")
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"run_dir={folder} cannot be written ({error.strerror}). Choose another run_dir.") from error
    return folder, created


def _in_the_way(folder: Path) -> str:
    """Name of a file or checkpoint in `folder` that a new run would overwrite or remove; "" without one."""
    if not folder.is_dir():
        return ""
    files = sorted(path.name for path in folder.iterdir() if _is_of_a_run(path.name))
    checkpoints = sorted(f"checkpoints/{path.name}" for path in (folder / "checkpoints").glob("[0-9]*"))
    return next(iter(files + checkpoints), "")


def _is_of_a_run(name: str) -> bool:
    """True for the files that a run writes before its first update, and for hidden ones of `replace_text`."""
    return name.removeprefix(".").removesuffix(".new") in RUN_FILES or name.startswith("events.out.tfevents")


def create_folder(folder: Path) -> bool:
    """Creates a folder. Returns False if it existed; of processes that call it at the same time, one gets True."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    return True


def run_id(folder: Path) -> str:
    """Id of the run in `folder`, which its checkpoints contain; "" for a run of an earlier version."""
    found = read_object(folder / "run.json").get("id")
    return found if isinstance(found, str) else ""


def why_no_checkpoint(folder: Path) -> str:
    """Sentences for the user of a run without a checkpoint: what happened, and how to start again."""
    elsewhere = read_object(folder / "run.json").get("checkpoints_in")
    if isinstance(elsewhere, str):
        return f"{folder} has no checkpoint to resume from: the run keeps its checkpoints in {elsewhere[:200]}."
    ended = read_object(folder / "processes.json").get("ended")
    cause = ended.strip().splitlines()[-1][:200] if isinstance(ended, str) and ended.strip() else ""  # of a traceback
    end = f"ended before its first checkpoint: {cause}" if cause else "was killed before one"
    recipe = read_object(folder / "run.json").get("recipe")
    command = f"powerband train {recipe if isinstance(recipe, str) else 'RECIPE'} run_dir=NEW --config"
    return (
        f"{folder} has no checkpoint to resume from: the run {end.rstrip('.')}. Start a new run with its settings: "
        f"{command} {folder / 'config.json'}. A smaller save_interval_s saves earlier."
    )


def refuse_links(folder: Path) -> None:
    """Refuses a run folder with symbolic links, through which a run would write or read somewhere else.

    Raises:
        ConfigError: A file of the folder, or of its folders checkpoints, policy, videos, nan and stacks, is a link.
    """
    inside = [folder, *(folder / name for name in ("checkpoints", "policy", "videos", "nan", "stacks"))]
    for path in (path for each in inside if each.is_dir() for path in each.iterdir()):
        if path.is_symlink():
            raise ConfigError(
                f"{path} is a symbolic link. A run neither reads nor writes through links in its folder. Replace the "
                f"link by what it points to, or remove it."
            )


STALL_FILE = "stall.json"
"""File that describes why a run makes no progress at present."""
RUN_FILES = ("config.json", "run.json", PROCESSES, "train.log", "metrics.jsonl", "trace.json", STALL_FILE)
"""Files that a run writes before its first update, in addition to TensorBoard's event files."""


def remove_unused_run(folder: Path, created: bool) -> None:
    """Removes the files of a run that failed before its first update. Other files stay.

    Args:
        folder: The run folder.
        created: True if the run created the folder; an empty folder is then removed too.
    """
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if _is_of_a_run(path.name):
                path.unlink()
        if created:
            for path in sorted(folder.rglob("*"), reverse=True):
                if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
                    path.rmdir()
            folder.rmdir()  # fails, and the folder stays, if it contains files of a stage


def process_facts() -> dict[str, Any]:
    """Identifies this process for other processes.

    Returns:
        ``hostname``, ``pid`` and ``began``, the start of the process in clock ticks after boot. The start distinguishes
        this process from a later one with the same pid.
    """
    return {"hostname": platform.node(), "pid": os.getpid(), "began": process_start_ticks(os.getpid())}


def process_start_ticks(pid: int) -> int | None:
    """Start of process `pid` in clock ticks after boot; None for an ended process, or without ``/proc``."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def write_processes(folder: Path, processes: list[dict[str, Any]], jobs: Collection[str] = ()) -> None:
    """Writes the processes of a starting or resumed run to ``processes.json`` in its folder.

    Args:
        folder: The run folder.
        processes: Result of `process_facts` for each rank.
        jobs: Ids of the launchers that may restart the ranks, see `powerband.core.ranks.restarts`.
    """
    (folder / STALL_FILE).unlink(missing_ok=True)  # of an earlier process
    newest, earlier = newest_checkpoint(folder), read_object(folder / PROCESSES)
    if set(jobs) & restarting_jobs(earlier):  # the ranks were restarted, maybe after they had saved
        newest = earlier.get("newest", newest)
    facts = {"began_s": time.time(), "ranks": processes, "ended": None, "jobs": sorted(jobs), "newest": newest}
    replace_text(folder / PROCESSES, json.dumps(facts))


def newest_checkpoint(folder: Path) -> list[int]:
    """Step of the newest checkpoint in a run folder and the time in ns at which it was written; empty without one."""
    steps = [int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdecimal()]
    with contextlib.suppress(OSError, ValueError):
        return [max(steps), (folder / "checkpoints" / str(max(steps)) / "manifest.json").stat().st_mtime_ns]
    return []


def restarting_jobs(facts: dict[str, Any]) -> set[str]:
    """Returns the launchers that ``processes.json`` or a lock with the content `facts` names."""
    jobs = facts.get("jobs")
    return {each for each in jobs if isinstance(each, str) and each} if isinstance(jobs, list) else set()


def write_end_reason(folder: Path, reason: str) -> None:
    """Adds the reason for the end of the run to ``processes.json``, if it has none; the first one is the cause.

    Errors are ignored, because the run ends anyway.
    """
    path = folder / PROCESSES
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts.get("ended"):
            return
        replace_text(path, json.dumps({**facts, "ended": reason, "ended_s": time.time()}))
