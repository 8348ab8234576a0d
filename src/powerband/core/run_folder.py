"""The run folder: claiming it, finding it from whatever a user names of it, and the processes that write into it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError

PICKLES = (".pth", ".pt", ".ckpt", ".pkl")


def find_run(word: str, root: Path = Path("runs")) -> Path:
    """The run folder that `word` names: the folder itself, anything below it, or ``last`` for the newest in `root`.

    Raises:
        ConfigError: There is no run folder there.
    """
    if word == "last":
        runs = sorted(root.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
        if not runs:
            raise ConfigError(f"'last': there is no run in {root.absolute()}. Name a run folder.")
        return runs[-1].parent
    path = Path(word).expanduser()
    if path.suffix in PICKLES:
        raise ConfigError(
            f"{word}: {path.suffix} files are pickles, which run code when they are read, so none is read. Name a run "
            f"folder of powerband, whose checkpoints are safetensors."
        )
    if not path.exists():
        raise ConfigError(f"{word} does not exist. Name a run folder, a checkpoint, a file in either, or last.")
    for folder in (path.absolute(), *path.absolute().parents):
        if (folder / "run.json").exists() and (folder / "config.json").exists():
            return folder
    raise ConfigError(f"{word} lies in no run folder: none above it has a run.json. Name a run folder, or last.")


def claim_run_folder(resume: str, run_dir: str, recipe: str) -> tuple[Path, bool]:
    """Creates the folder of a run: `run_dir`, or a new one under ``runs``; a resumed run keeps its folder.

    Returns:
        The folder, and True if it did not exist before.

    Raises:
        ConfigError: It holds another run, or cannot be written.
    """
    if resume:
        return find_run(resume), False
    folder = Path(run_dir or f"runs/{recipe}-{time.strftime('%Y%m%d-%H%M%S')}").expanduser()
    if (folder / "run.json").exists():
        raise ConfigError(
            f"run_dir={folder} holds a run already, and nothing is overwritten. "
            f"Choose another run_dir, or go on with it: resume={folder}."
        )
    created = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_text("yes")
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"run_dir={folder} cannot be written ({error.strerror}). Choose another run_dir.") from error
    return folder, created


RUN_FILES = ("config.json", "run.json", "processes.json", "train.log", "metrics.jsonl", "trace.json")
"""Files that a run writes before its first update; TensorBoard's event files besides."""


def remove_unused_run(folder: Path, created: bool) -> None:
    """Removes the files of a run that was refused before it trained; all other files stay.

    Args:
        folder: The run folder.
        created: The run created the folder, so that it is removed too if nothing is left in it.
    """
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name in RUN_FILES or path.name.startswith("events.out.tfevents"):
                path.unlink()
        if created:
            folder.rmdir()  # fails, and the folder stays, if a stage has written anything of its own


def process_facts() -> dict[str, Any]:
    """This process, so that another one can find it: host, id, and the moment it began, which no second one has."""
    return {"hostname": platform.node(), "pid": os.getpid(), "began": process_start_ticks(os.getpid())}


def process_start_ticks(pid: int) -> int | None:
    """Clock ticks after boot at which process `pid` began; None where there is none, or no ``/proc``."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    words = stat.rpartition(")")[2].split()
    return None if words[0] == "Z" else int(words[19])


def write_processes(folder: Path, processes: list[dict[str, Any]]) -> None:
    """Writes ``processes.json``: those of the run that begins, one a rank; a run that went on has its last ones."""
    (folder / "processes.json").write_text(json.dumps({"began_s": time.time(), "ranks": processes, "ended": None}))


def write_end_reason(folder: Path, reason: str) -> None:
    """Adds to ``processes.json`` that the run ended, and why; what cannot be written is left: the run ends anyway."""
    path = folder / "processes.json"
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**facts, "ended": reason, "ended_s": time.time()}), encoding="utf-8")
