"""Trial run: starts the script once in a copy of its folder, with a change or without, until it has done the work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from powerband.attach.audit.offline_copy import OfflineCopy, offline_copy
from powerband.attach.audit.short_run import wait_until
from powerband.attach.processes.launch import launch
from powerband.attach.processes.records import Record
from powerband.attach.processes.script_run import ScriptOptions, ScriptRun, watched
from powerband.attach.trial.change import Change
from powerband.attach.trial.gain import DRAWS
from powerband.attach.trial.work import Work, leading_marks, rate_of
from powerband.core.errors import ConfigError

TOOL, VARIABLE = "trial", "POWERBAND_TRIAL"
SLOWEST = 3.0
"""A changed run ends when it has taken this many times as long as the first run."""
COMPILE_S = 120.0
"""Additional seconds of a run with compilation."""
PROBE_CYCLES, LEAST_BLOCKS = 6, 3
"""Blocks of updates with each change, and the smallest number from which a gain is predicted."""
UNSTEADY = 0.15
"""Half width of the 95 % interval of a probed rate, as a share of it, above which a probe predicts nothing."""
BY_VARIABLES = ("tqdm", "mujoco_gl")
"""Changes by environment variables alone."""


@dataclass(frozen=True)
class TrialRun:
    """What a run has done.

    Attributes:
        rate: Iterations per second; None if it has not done enough.
        error: Why it failed; "" if it did not.
    """

    rate: float | None
    error: str


def first_run(command: Sequence[str], source: Path, options: ScriptOptions) -> ScriptRun:
    """Runs the script without a change in a copy of its folder, for the first profile. It keeps the terminal.

    Raises:
        ConfigError: The command cannot be started, or the script writes outside of its folder.
    """
    with offline_copy(command, source, "powerband-try-") as place:
        variables = {**place.variables, VARIABLE: str(_settings(place, {}))}
        script = launch(place.command, TOOL, place.records, variables, place.copy)
        script.renamed = (str(place.root), "")
        run = watched(script, options)
    if outside := _outside(run.records):
        raise ConfigError(
            f"The script was stopped before it wrote {outside}, which is outside the working folder. "
            f"Set its output to a relative path, because each run works in a copy of the folder."
        )
    return run


def timed_run(command: Sequence[str], source: Path, change: Change | None, work: Work, start_up_s: float) -> TrialRun:
    """Runs the script until it has done the work.

    Args:
        command: Command line of the user.
        source: The user's working folder.
        change: The change; None for a run without one.
        work: The part of the script to time.
        start_up_s: Seconds of the first run before its window.
    """
    settings: dict[str, Any] = {"unit": work.unit, "until": work.last}
    if change is not None:
        settings |= {"change": {change.name: change.value}, "where": list(change.where)}
    most_s = SLOWEST * (start_up_s + 3 + work.seconds) + 20
    most_s += COMPILE_S if change is not None and change.name == "compile" else 0.0
    records, error = run_once(command, source, settings, change.variables if change else {}, most_s)
    if change is not None and change.name not in BY_VARIABLES and not error and not _lines(records, "changed"):
        error = "the change has not reached the script"
    return TrialRun(None if error else rate_of(leading_marks(records, work.unit), work), error)


def probed(
    command: Sequence[str], source: Path, changes: Sequence[Change], work: Work, start_up_s: float
) -> tuple[list[float | None], str]:
    """Alternates changes within one run, and returns the gain of the updates with each change.

    Returns:
        (gain per change, why the run failed). A gain is None if the run failed, or if the blocks of updates vary so
        much that the gain is not known within `UNSTEADY`.
    """
    variants = [{change.name: change.value} for change in changes]
    most_s = 2 * start_up_s + 30 + PROBE_CYCLES * (len(changes) + 1) * max(2.0, 2 * work.seconds)
    records, error = run_once(command, source, {"probe": variants, "cycles": PROBE_CYCLES}, {}, most_s)
    blocks = _lines(records, "probe")
    update_s = [
        [line["seconds"] / line["updates"] for line in blocks if line["variant"] == variant]
        for variant in range(len(changes) + 1)
    ]
    if len(update_s[0]) < LEAST_BLOCKS:
        return [None] * len(changes), error or "too few updates"
    return [_steady_gain(update_s[0], changed) for changed in update_s[1:]], error


def _steady_gain(unchanged: list[float], changed: list[float]) -> float | None:
    """Returns the gain from the seconds of an update in each block; None if it is not known within `UNSTEADY`."""
    if len(changed) < LEAST_BLOCKS:
        return None
    rng = np.random.default_rng(0)
    drawn = [np.median(rng.choice(times, (DRAWS, len(times))), axis=1) for times in (unchanged, changed)]
    low, high = np.percentile(drawn[0] / drawn[1], [2.5, 97.5])
    ratio = float(np.median(unchanged) / np.median(changed))
    return ratio - 1 if high - low <= 2 * UNSTEADY * ratio else None


def run_once(
    command: Sequence[str], source: Path, settings: dict[str, Any], variables: dict[str, str], most_s: float
) -> tuple[list[Record], str]:
    """Runs the script to the end that the settings name. Returns its records, and why it failed."""
    with offline_copy(command, source, "powerband-try-") as place:
        # An installed package of the working folder, such as an editable one, runs from its original files.
        settings["where"] = [text for each in settings.get("where", []) for text in (place.in_copy(each), each)]
        every = {**place.variables, **variables, VARIABLE: str(_settings(place, settings))}
        with place.console.open("wb") as console:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": console, "stderr": subprocess.STDOUT}
            process = launch(place.command, TOOL, place.records, every, place.copy, **streams)
            try:
                wait_until(process, most_s)
            finally:
                process.end()
        records = process.records()
        for line in _lines(records, "outside"):
            line["path"] = place.users(line["path"])
        if outside := _outside(records):  # first, because a stopped worker can make the script fail
            return records, f"the script was about to write {outside}, which is outside the working folder"
        if process.status and not _lines(records, "finished"):
            output = place.console_tail() or place.console_text()
            lines = [line for line in output.splitlines() if line.strip()]
            return records, lines[-1].strip()[:200] if lines else f"status {process.status}"
        if broken := _lines(records, "failure"):
            return records, f"the instrumentation failed: {broken[0]['text'].strip().splitlines()[-1]}"
        return records, ""


def _settings(place: OfflineCopy, settings: dict[str, Any]) -> Path:
    path = place.folder / "settings.json"
    path.write_text(json.dumps({"folder": str(place.copy), **settings}), encoding="utf-8")
    return path


def _outside(records: Sequence[Record]) -> str:
    return next((line["path"] for line in _lines(records, "outside")), "")


def _lines(records: Sequence[Record], kind: str) -> list[dict[str, Any]]:
    return [line for record in records for line in record.of_kind(kind)]
