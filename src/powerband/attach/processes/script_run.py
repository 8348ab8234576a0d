"""Script run: runs a training script with the instrumentation of the profile, until its window has ended."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from powerband.attach.processes.launch import SILENT_AFTER_S, Launched, launch
from powerband.attach.processes.process_tree import Process
from powerband.attach.processes.records import Record
from powerband.attach.processes.temporary_folder import temporary_folder
from powerband.core.config.ranges import Range, check_ranges

FIRST_UPDATES = 3
"""Number of updates before the window starts; they allocate, compile and fill caches."""
OLD_S, LEAST_OLD_S = 900.0, 11.0
"""Age from which a process writes its times every 5 s only, and the shortest window with two of its lines."""


@dataclass(frozen=True)
@check_ranges
class ScriptOptions:
    """Options of ``powerband profile -- COMMAND``."""

    seconds: Annotated[float, Range(at_least=1.0, at_most=86_400.0)] = 30.0
    """Seconds to measure, counted after the first updates of the script."""
    wait: Annotated[float, Range(at_least=1.0, at_most=86_400.0)] = 120.0
    """Seconds to wait for the first updates; after them, the measurement starts without updates."""
    keep_running: bool = False
    """Let the script finish, and report on all of its time after the first updates."""
    page: str = ""
    """File of the report page, such as profile.html; empty writes no page."""
    try_changes: bool = False
    """Start the script again with one change at a time, and measure the gains (``--try``)."""
    allow_numerics: bool = False
    """Also try changes that change numerical results, such as bfloat16 (``--allow-numerics``)."""
    show_env: bool = False
    """Print the variables or the diff that make the gains permanent (``--env``)."""
    try_seconds: Annotated[float, Range(at_least=1.0, at_most=3600.0)] = 4.0
    """Seconds of each run with or without a change, after its warm-up."""
    try_runs: Annotated[int, Range(at_least=3, at_most=100)] = 3
    """Runs of each change; a run without it comes before and after each."""
    try_budget: Annotated[float, Range(at_least=10.0, at_most=86_400.0)] = 900.0
    """Budget of all these runs in seconds; the changes with the largest predicted gains come first."""


@dataclass
class ScriptRun:
    """What a run of the script has left.

    Attributes:
        records: What its processes have written.
        silent: Python processes that never reported.
        status: Exit status for the shell.
        start_ns, end_ns: The window, on the clock of `time.perf_counter_ns`.
        start_up_s: Seconds before the window.
        notes: Remarks about the run.
        began: Whether the window began before the script ended.
    """

    records: list[Record]
    silent: list[Process]
    status: int
    start_ns: int
    end_ns: int
    start_up_s: float
    notes: list[str] = field(default_factory=list)
    began: bool = True


def _silent(text: str) -> None:
    """Reports nothing."""


def run_script(command: Sequence[str], options: ScriptOptions, report: Callable[[str], None] = _silent) -> ScriptRun:
    """Runs the command until the end of the window, or to its own end.

    Args:
        command: Command line of the script.
        options: Options of the measurement.
        report: Function that receives a sentence for the user at each stage of the measurement.

    Raises:
        ConfigError: The command cannot be started, or there is no place for its records.
    """
    folder = temporary_folder("powerband-attach-")
    try:
        return watched(launch(command, "profile", folder), options, report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def watched(script: Launched, options: ScriptOptions, report: Callable[[str], None] = _silent) -> ScriptRun:
    """Waits for the end of the window of a running script, and ends the script there, or when the measurement fails."""
    try:
        return _measured(script, options, report)
    except BaseException:  # the script must not go on without its folder
        script.end()
        raise


def _measured(script: Launched, options: ScriptOptions, report: Callable[[str], None]) -> ScriptRun:
    began_ns = time.perf_counter_ns()
    start: list[tuple[int, str]] = []
    looked, seconds = 0.0, options.seconds
    unseen = False
    if options.keep_running:
        report("measuring until the script ends")
    elif script.instrumented:
        report(f"waiting for optimiser step {FIRST_UPDATES} of the script, for at most {options.wait:g} s")

    def over() -> bool:
        nonlocal looked, seconds, unseen
        if options.keep_running or not script.instrumented:  # nothing ends before the script does
            return False
        now = time.perf_counter_ns()
        if not start and now * 1e-9 - looked >= 1.0:
            looked = now * 1e-9
            records = script.records()
            unseen = not records and now - began_ns > max(options.wait, SILENT_AFTER_S + 1) * 1e9
            if found := window_start(records, now, options.wait):
                start.append(found)
                seconds = _window_s(records, found[0], options.seconds)
                report(f"measuring for {seconds:g} s")
        return unseen or bool(start) and now - start[0][0] >= (seconds + 0.6) * 1e9

    ended = script.wait(over)
    silent = script.silent()
    if not ended:
        report("examining a few updates, then the script is ended")
        script.probe()
        script.flush_output()
        script.end()
    records = script.records()
    notes, began = [], bool(start)
    if not start:  # the script has ended before its window started
        now = time.perf_counter_ns()
        found = window_start(records, now, float("inf")) or window_start(records, now, options.wait)
        remark = "the script ended with fewer than three optimiser steps"
        start = [found or (records[0].began_ns if records else began_ns, remark)]
    start_ns, remark = start[0]
    notes += [remark] if remark else []
    if seconds > options.seconds:
        notes.append(f"the window has {seconds:.0f} s, because a process older than {OLD_S:.0f} s reports every 5 s")
    end_ns = time.perf_counter_ns() if options.keep_running else start_ns + int(seconds * 1.02e9)
    if ended and not options.keep_running:
        notes.append("the script ended before the window did.")
    return ScriptRun(records, silent, script.status, start_ns, end_ns, (start_ns - began_ns) * 1e-9, notes, began)


def _window_s(records: Sequence[Record], start_ns: int, asked_s: float) -> float:
    """Returns the length of the window in seconds, long enough for two lines of each process."""
    old = any(start_ns + asked_s * 1e9 - record.began_ns > OLD_S * 1e9 for record in records)
    return max(asked_s, LEAST_OLD_S) if old else asked_s


def window_start(records: Sequence[Record], now_ns: int, patience_s: float) -> tuple[int, str] | None:
    """Returns the start of the window and a remark, or None if the script has not come so far yet.

    Args:
        records: Records so far.
        now_ns: Present time of `time.perf_counter_ns`.
        patience_s: Seconds without an update after which the window starts anyway.
    """
    times = [line for record in records for line in record.of_kind("times")]
    learning = [line["now_ns"] for line in times if line["updates"] >= FIRST_UPDATES]
    if learning:
        return min(learning), ""
    if records and now_ns - records[0].began_ns > patience_s * 1e9:
        stepping = [line["now_ns"] for line in times if line["env_steps"]]
        start = min(stepping, default=records[0].began_ns)
        return start, f"no optimiser step in the first {patience_s:.0f} s: the window contains no learning yet"
    return None
