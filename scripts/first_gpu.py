"""Runs the GPU tests and all figures that need a GPU, in at most nine minutes, and writes one JSON file and a table.

    python scripts/first_gpu.py [--wheels FOLDER] [--only sac rdt] [--json FILE] [--dry-run]

Each step is a child process with its own time limit. A step that fails or hangs does not stop the next one. The file is
written after each step. The script uses the packages of the Python that runs it, and skips a step whose packages are
missing, with the reason. `--only` runs some steps, and replaces their results in an existing file. `--wheels` installs
the wheels of a folder into build/gpu-packages first, without a network. `--dry-run` runs all steps on the CPU at a tiny
size, to test the script on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu.step import Outcome, Step, environment, kill, run  # noqa: E402
from gpu.steps import STEPS, TOTAL_S, wheels_step  # noqa: E402

RESULTS, DRY_RESULTS = ROOT / "benchmarks/results/gpu/gpu.json", ROOT / "build/gpu-dry-run.json"
PACKAGES = ROOT / "build/gpu-packages"
QUESTION = """
import importlib.util, sys
if importlib.util.find_spec("torch") is None:
    sys.exit(4)
import torch
sys.exit(0 if torch.cuda.is_available() else 3)
"""
QUESTION_S = 60.0
"""Seconds for the question whether torch finds a GPU."""
DRY_FACTOR = 4
"""Factor on the limits in a dry run, because compiling the kernels of an environment for a slow CPU takes a minute."""
WIDTHS = (16, 9, 52, 52)
"""Widths of the columns step, status, figure, and goal or baseline."""


def main(arguments: Sequence[str] | None = None, steps: Sequence[Step] = STEPS) -> int:
    """Runs the steps and returns the exit status: 0 if none failed, 1 if one failed, 2 without a GPU.

    Args:
        arguments: Command line; None takes that of the process.
        steps: Steps to run; tests pass their own.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wheels", help="folder of wheels to install first")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in steps], help="run these steps only")
    parser.add_argument("--json", type=Path, help=f"file for the results, {RESULTS.relative_to(ROOT)} by default")
    parser.add_argument("--dry-run", action="store_true", help="run on the CPU at a tiny size")
    options = parser.parse_args(arguments)
    path = options.json or (DRY_RESULTS if options.dry_run else RESULTS)
    chosen = [step for step in steps if not options.only or step.name in options.only]
    if options.wheels:
        chosen.insert(0, wheels_step(str(Path(options.wheels).resolve()), str(PACKAGES)))
    kept = earlier(path, [step.name for step in chosen]) if options.only else []
    started = time.monotonic()
    if not options.dry_run and (problem := no_gpu()):
        print(f"{problem} Add --dry-run to test the steps on the CPU.")
        return 2
    outcomes: list[Outcome] = []
    print_row(("step", "status", "figure", "goal, baseline or reason"), "seconds")
    with tempfile.TemporaryDirectory(prefix="powerband-gpu-") as folder:
        for step in chosen:
            left_s = TOTAL_S - (time.monotonic() - started)
            limit_s = DRY_FACTOR * step.limit_s if options.dry_run else min(step.limit_s, left_s)
            outcomes.append(run_or_skip(step, Path(folder), limit_s, options.dry_run))
            write(path, kept, outcomes, time.monotonic() - started, options.dry_run)
            print_outcome(outcomes[-1])
    statuses = [each.status for each in outcomes]
    counts = {status: statuses.count(status) for status in ("ok", "skipped", "failed", "timeout")}
    print(f"{', '.join(f'{count} {status}' for status, count in counts.items())}. Results: {path}")
    return int(counts["failed"] + counts["timeout"] > 0)


def run_or_skip(step: Step, folder: Path, limit_s: float, dry: bool) -> Outcome:
    """Runs a step; an error of the script itself is that step's outcome and does not stop the next one."""
    if limit_s <= 1:
        return Outcome(step.name, "skipped", f"the {TOTAL_S:g} s of the script are over", 0.0, 0.0, step.command)
    try:
        return run(step, folder, limit_s, PACKAGES, dry)
    except Exception as error:  # for example a full disk
        return Outcome(step.name, "failed", f"{type(error).__name__}: {error}", 0.0, limit_s, step.command)


def no_gpu() -> str:
    """Returns why this machine can measure nothing; "" if torch finds a GPU, or the question itself failed."""
    child = subprocess.Popen([sys.executable, "-c", QUESTION], env=environment(PACKAGES, False), start_new_session=True)
    try:
        status = child.wait(QUESTION_S)
    except subprocess.TimeoutExpired:
        status = 0
    finally:
        kill(child)
    return {3: "torch finds no CUDA device on this machine.", 4: f"{sys.executable} has no torch."}.get(status, "")


def earlier(path: Path, repeated: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the steps of an existing file that this run does not repeat."""
    try:
        steps = json.loads(path.read_text())["steps"]
    except (OSError, ValueError, KeyError):
        return []
    return [step for step in steps if step["step"] not in repeated]


def write(path: Path, kept: list[dict[str, Any]], outcomes: list[Outcome], seconds: float, dry: bool) -> None:
    """Writes the kept steps of earlier runs and all outcomes so far, and replaces the file in one step."""
    run = {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": commit()}
    steps = kept + [each.to_dict() | run for each in outcomes]
    result: dict[str, Any] = {
        **run,
        "python": platform.python_version(),
        "dry_run": dry,
        "seconds": seconds,
        "machine": next((step["result"] for step in steps if step["step"] == "machine"), None),
        "steps": steps,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(partial, path)


def commit() -> str:
    """Returns the commit of the checkout, with "-dirty" if files differ from it; "unknown" without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def print_outcome(outcome: Outcome) -> None:
    """Prints a step: the reason if it is not ok, and a row per figure."""
    cells = [(f"{each.name}: {shown(each.value)} {each.unit}", each.compared_with) for each in outcome.figures]
    if outcome.reason or not cells:
        cells.insert(0, (outcome.reason, ""))
    names, seconds = (outcome.step, outcome.status), f"{outcome.seconds:.1f}"
    for cell in cells:
        print_row((*names, *cell), seconds)
        names, seconds = ("", ""), ""


def shown(value: float) -> str:
    """Formats a figure with three significant digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def print_row(cells: Sequence[str], seconds: str) -> None:
    """Prints one line of the table at once; a reason without a goal may use the columns of both."""
    step, status, figure, compared_with = cells
    text = f"{figure:<{WIDTHS[2]}} {compared_with}" if compared_with else figure
    print(f"{step:<{WIDTHS[0]}}{status:<{WIDTHS[1]}}{text:<{WIDTHS[2] + WIDTHS[3]}}{seconds:>9}".rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
