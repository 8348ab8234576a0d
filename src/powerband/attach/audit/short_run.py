"""Short run: starts the script in a copy of its folder, with some options changed, and collects what it did."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.attach.audit.offline_copy import offline_copy
from powerband.attach.audit.working_copy import file_stamps, written_files
from powerband.attach.processes.launch import Launched, launch
from powerband.attach.processes.records import Record

REPEATABLE = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
LOOK_S = 0.1


@dataclass(frozen=True)
class Limits:
    """End of a short run.

    Attributes:
        updates, env_steps: Counts at which it ends; 0 means none.
        window_s: Seconds after the first optimiser step at which a run without counts ends, but not before the eighth
            step. Without optimiser steps, it ends twice this time after the first environment step.
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
        console: Its output, stdout and stderr together; only the start of a long one.
        files: Path -> (size, hash) of the files it has written.
        status: Exit status; None if the run was stopped because it took too long.
        stopped: Whether it ended at a limit, and not by itself. A simulator worker never ends at a limit.
        seconds: Wall time in seconds.
        timed_out: Whether it was stopped by its longest time, before the counts of the unchanged run.
        tail: End of an output that is too long for `console`; else "".
    """

    changes: dict[str, Any]
    records: list[Record]
    console: str
    files: dict[str, tuple[int, str]]
    status: int | None
    stopped: bool
    seconds: float
    timed_out: bool = False
    tail: str = ""

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
        lines = [line for line in (self.tail or self.console).splitlines() if line.strip()]
        return lines[-1].strip()[:200] if lines else f"status {self.status}"

    @property
    def output(self) -> str:
        """Its output, with a remark in place of the middle of a long one."""
        left_out = "\n... (powerband left out a part of the output) ...\n"
        return f"{self.console}{left_out}{self.tail}" if self.tail else self.console


def run_short(
    command: Sequence[str],
    source: Path,
    changes: dict[str, Any],
    limits: Limits,
    stop: threading.Event | None = None,
) -> ShortRun:
    """Runs the script once.

    Args:
        command: Command line of the user.
        source: The user's working folder.
        changes: Option id -> value to set.
        limits: When the run ends.
        stop: Ends the run at once when it is set, from another thread.
    """
    with offline_copy(command, source, "powerband-audit-") as place:
        copy = place.copy
        settings = place.folder / "settings.json"
        settings.write_text(json.dumps({"changes": changes, "folder": str(copy), **vars(limits)}), encoding="utf-8")
        threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
        variables = {**place.variables, **REPEATABLE, **threads, "POWERBAND_AUDIT": str(settings)}
        before, began = file_stamps(copy), time.monotonic()
        with place.console.open("wb") as console:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": console, "stderr": subprocess.STDOUT}
            process = launch(place.command, "audit", place.records, variables, copy, **streams)
            try:
                in_time = wait_until(process, limits.most_s + 20, stop)
            finally:
                process.end()
        text, tail = place.console_text(), place.console_tail()
        found = process.records()
        for line in (line for record in found for line in record.of_kind("outside")):
            line["path"] = place.users(line["path"])
        stopped = any(record.of_kind("stopped") for record in found) or not in_time
        files, seconds = written_files(copy, before), time.monotonic() - began
        status = process.status if in_time else None
        timed_out = not in_time or (stopped and not limits.window_s and not _reached(found, limits))
        return ShortRun(changes, found, text, files, status, stopped, seconds, timed_out, tail)


def wait_until(process: Launched, seconds: float, stop: threading.Event | None = None) -> bool:
    """Waits for the end of the first process. Returns False if it takes longer than `seconds`, or if `stop` is set."""
    limit, look = time.monotonic() + seconds, 0.0
    while process.popen.poll() is None:
        if time.monotonic() > limit or (stop is not None and stop.is_set()):
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
