"""Short run: starts the script in a copy of its folder, with some options changed, and collects what it did."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.attach.audit.working_copy import copy_folder, file_stamps, written_files
from powerband.attach.launch import launch
from powerband.attach.records import Record

OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "MLFLOW_TRACKING_URI": "file:mlruns",
}
"""Variables that keep services offline; MLflow writes into the copy."""
REPEATABLE = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
CONSOLE_BYTES = 4 * 2**20
LOOK_S = 0.1


@dataclass(frozen=True)
class Limits:
    """End of a short run.

    Attributes:
        updates, env_steps: Counts at which it ends; 0 means none.
        window_s: Seconds after the first optimiser step at which a run without counts ends.
        most_s: Seconds after which any run ends.
    """

    updates: int = 0
    env_steps: int = 0
    window_s: float = 0.0
    most_s: float = 60.0


@dataclass(frozen=True)
class ShortRun:
    """What a short run did.

    Attributes:
        changes: Option id -> the changed value.
        records: Records of its Python processes, the oldest first.
        console: Its output, stdout and stderr together.
        files: Path -> (size, hash) of the files it has written.
        status: Exit status; None if the run was stopped because it took too long.
        stopped: Whether it ended at a limit, and not by itself.
        seconds: Wall time in seconds.
        timed_out: Whether it was stopped by its longest time, before the counts of the unchanged run.
    """

    changes: dict[str, Any]
    records: list[Record]
    console: str
    files: dict[str, tuple[int, str]]
    status: int | None
    stopped: bool
    seconds: float
    timed_out: bool = False

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Returns the lines of one kind of all processes."""
        return [line for record in self.records for line in record.of_kind(kind)]

    @property
    def failed(self) -> bool:
        """Whether the script ended by itself with an error."""
        return self.status not in (0, None) and not self.stopped

    @property
    def outside(self) -> str:
        """Path outside the copy that the script was about to write, or ""."""
        return next((line["path"] for line in self.lines("outside")), "")

    def last_error(self) -> str:
        """Returns the last line of the output, which names the error of a failed script."""
        lines = [line for line in self.console.splitlines() if line.strip()]
        return lines[-1].strip()[:200] if lines else f"status {self.status}"


def run_short(command: Sequence[str], source: Path, changes: dict[str, Any], limits: Limits) -> ShortRun:
    """Runs the script once.

    Args:
        command: Command line of the user.
        source: The user's working folder.
        changes: Option id -> value to set.
        limits: When the run ends.
    """
    place = Path(tempfile.mkdtemp(prefix="powerband-audit-"))
    try:
        copy, records, temporary = place / source.name, place / "records", place / "tmp"
        copy_folder(source, copy)
        records.mkdir()
        temporary.mkdir()
        settings = place / "settings.json"
        settings.write_text(json.dumps({"changes": changes, "folder": str(copy), **vars(limits)}), encoding="utf-8")
        words = [word.replace(str(source), str(copy)) for word in command]
        port = str(_free_port())
        threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
        variables = {**OFFLINE, **REPEATABLE, **threads, "POWERBAND_AUDIT": str(settings), "TMPDIR": str(temporary)}
        variables |= {"MASTER_PORT": port, "PET_MASTER_PORT": port}
        before, began = file_stamps(copy), time.monotonic()
        with (place / "console").open("wb") as console:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": console, "stderr": subprocess.STDOUT}
            process = launch(words, "audit", records, variables, copy, **streams)
            try:
                in_time = _wait(process, limits.most_s + 20)
            finally:
                process.end()
        text = (place / "console").read_bytes()[:CONSOLE_BYTES].decode("utf-8", "replace")
        found = process.records()
        stopped = any(record.of_kind("stopped") for record in found) or not in_time
        files, seconds = written_files(copy, before), time.monotonic() - began
        text = text.replace(str(copy), str(source)).replace(str(temporary), "TMPDIR")
        status = process.popen.returncode if in_time else None
        timed_out = not in_time or (stopped and not limits.window_s and not _reached(found, limits))
        return ShortRun(changes, found, text, files, status, stopped, seconds, timed_out)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _wait(process: Any, seconds: float) -> bool:
    """Waits for the end of the first process. Returns False if it takes longer than `seconds`."""
    limit, look = time.monotonic() + seconds, 0.0
    while process.popen.poll() is None:
        if time.monotonic() > limit:
            return False
        if time.monotonic() > look:
            process.tree.look()
            look = time.monotonic() + 1.0
        time.sleep(LOOK_S)
    return True


def _reached(records: list[Record], limits: Limits) -> bool:
    """Whether a process was stopped at one of the counts of `limits`."""
    ends = [line for record in records for line in record.of_kind("stopped")]
    pairs = ((limits.updates, "updates"), (limits.env_steps, "env_steps"))
    return any(limit and line[name] >= limit for line in ends for limit, name in pairs)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
