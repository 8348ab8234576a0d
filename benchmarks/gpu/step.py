"""Step: one measurement in a child process with a time limit, and its outcome.

The parent imports neither torch nor powerband, so that a broken installation or a GPU that hangs ends a step and not
the script. A child writes its results to the file after ``--json`` as it goes; the parent reads what is in it, whatever
became of the child.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
SKIP_STATUS = 77
"""Exit status of a child that cannot measure on this machine; the last line that it prints is the reason."""
OUTPUT_LINES = 20
"""Last lines of a child's output that are stored."""
DRY_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
KILL_S = 5.0
"""Seconds for the end of a killed child; one that the driver blocks may never end."""
Status = Literal["ok", "skipped", "failed", "timeout"]


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        name: What was measured.
        value: The figure.
        unit: Its unit.
        compared_with: Goal or baseline as text; "" if neither is known.
    """

    name: str
    value: float
    unit: str
    compared_with: str = ""


@dataclass(frozen=True)
class Step:
    """One measurement.

    Attributes:
        name: Name in the table.
        limit_s: Time limit in seconds, for both kinds of run.
        command: Arguments of Python; ``--json FILE`` is appended.
        dry_command: The same code on the CPU at a tiny size.
        needs: Modules that the child imports.
        cuda_needs: Modules that it imports on CUDA only.
        figures: Reads the figures from the child's file. They are read one by one, so a file that lacks the later ones
            still yields the earlier ones.
    """

    name: str
    limit_s: float
    command: tuple[str, ...]
    dry_command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    cuda_needs: tuple[str, ...] = ()
    figures: Callable[[dict[str, Any]], Any] = lambda _: ()


@dataclass(frozen=True)
class Outcome:
    """What became of a step.

    Attributes:
        step: Name of the step.
        status: "ok", "skipped" (something is missing), "failed" or "timeout".
        reason: Why the step was skipped or failed; "" if it is ok.
        seconds: Wall time.
        limit_s: Time limit in seconds.
        command: Arguments of Python.
        figures: Figures that the child measured before it ended.
        result: Complete contents of the child's file; None if it wrote none.
        output: Last lines of the child's output.
    """

    step: str
    status: Status
    reason: str
    seconds: float
    limit_s: float
    command: tuple[str, ...]
    figures: list[Figure] = field(default_factory=list)
    result: dict[str, Any] | None = None
    output: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns the outcome as a JSON value."""
        return asdict(self)


def run(step: Step, folder: Path, limit_s: float, packages: Path, dry: bool) -> Outcome:
    """Runs a step in a child process, and ends its process group when the step is over.

    Args:
        step: Step to run.
        folder: Folder for the child's file and output.
        limit_s: Time limit in seconds.
        packages: Folder with further packages, which need not exist.
        dry: Run the tiny version on the CPU.
    """
    command = step.dry_command if dry else step.command
    absent = missing(step.needs + (() if dry else step.cuda_needs), packages)
    if absent:
        return Outcome(step.name, "skipped", f"needs {', '.join(absent)}", 0.0, limit_s, command)
    result, output = folder / f"{step.name}.json".replace(" ", "_"), folder / "output.txt"
    started = time.monotonic()
    with output.open("wb") as sink:
        child = subprocess.Popen(
            [sys.executable, *command, "--json", str(result)],
            cwd=ROOT,
            env=environment(packages, dry),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    try:
        status: int | None = child.wait(limit_s)
    except subprocess.TimeoutExpired:
        status = None
    finally:
        kill(child)
    lines = output.read_text(errors="replace").splitlines()[-OUTPUT_LINES:]
    measured = read(result)
    figures, problem = figures_of(step, measured)
    verdict, reason = judge(status, lines, limit_s)
    if verdict == "ok" and problem:
        verdict, reason = "failed", problem
    seconds = time.monotonic() - started
    return Outcome(step.name, verdict, reason, seconds, limit_s, command, figures, measured, lines)


def missing(modules: tuple[str, ...], packages: Path) -> list[str]:
    """Returns the top-level modules that the child could not import."""
    importlib.invalidate_caches()
    path = [str(packages), *sys.path]
    return [name for name in modules if importlib.machinery.PathFinder.find_spec(name, path) is None]


def environment(packages: Path, dry: bool) -> dict[str, str]:
    """Returns the environment of a child: the source and further packages come first; a dry run hides all GPUs."""
    paths = [str(ROOT / "src"), str(packages), os.environ.get("PYTHONPATH", "")]
    fixed = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **fixed, **(DRY_ENVIRONMENT if dry else {})}


def kill(child: subprocess.Popen) -> None:
    """Kills the process group of a child, including processes that outlived it."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        child.wait(KILL_S)
    except subprocess.TimeoutExpired:
        pass  # the driver blocks it; the next step must run all the same


def read(path: Path) -> dict[str, Any] | None:
    """Returns the contents of a JSON file; None if it is absent, or was cut off while it was written."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def figures_of(step: Step, measured: dict[str, Any] | None) -> tuple[list[Figure], str]:
    """Returns (figures of a child's file, problem): the problem is "" if all were there."""
    figures: list[Figure] = []
    if measured is None:
        return figures, "the step wrote no results"
    try:
        figures.extend(step.figures(measured))  # extend keeps what a generator yielded before it raised
    except (KeyError, IndexError, TypeError) as error:
        return figures, f"the results lack a figure: {type(error).__name__} {error}"
    return figures, ""


def judge(status: int | None, lines: list[str], limit_s: float) -> tuple[Status, str]:
    """Returns (status, reason) from a child's exit status, which is None after its limit, and its last lines."""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    if status is None:
        return "timeout", f"not done after {limit_s:g} s; last output: {last}"
    if status == 0:
        return "ok", ""
    if status == SKIP_STATUS:
        return "skipped", last
    module = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", "\n".join(lines))
    if module:
        return "skipped", f"needs {module[1]}"
    ended = f"died of {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return "failed", f"{ended}: {last}"
