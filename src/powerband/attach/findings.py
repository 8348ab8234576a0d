"""Findings: ledger, causes, advice and lines of a script's window, as text and as JSON."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.attach.processes.script_run import ScriptRun
from powerband.attach.times.process_times import Line, ProcessTimes, process_times
from powerband.attach.times.window import facts_of, ranks_of
from powerband.attach.trial.tried import TriedChanges
from powerband.tune.diagnose.diagnosis import Diagnosis, diagnose
from powerband.tune.diagnose.evidence import Finding
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import duration

SHOWN_SHARE, SHOWN_LINES = 0.02, 12
"""Smallest share of the wall time of a line of code in the report, and the largest number of lines."""
ACCOUNTS_OF = {
    "env-bound": ("env", "env_wait"),
    "env-straggler": ("env_wait",),
    "data-wait": ("data_wait",),
    "update-bound": ("update", "sample", "returns"),
    "eval-blocking": ("eval",),
    "log-blocking": ("log",),
    "save-blocking": ("save",),
    "comm-bound": ("collectives",),
    "rank-straggler": ("collectives",),
    "act-bound": ("act", "store"),
    "launch-bound": ("update", "act"),
    "host-sync": ("h2d",),
}
"""Cause -> accounts whose lines of code show where it is."""


@dataclass(frozen=True)
class ScriptAdvice:
    """A change that could remove a cause.

    Attributes:
        cause: Cause of the diagnosis.
        change: What to change.
        at_most: Largest possible gain: the rate if the cause took no time, divided by the present rate.
        where: Lines of code with most of the cause's time.
    """

    cause: str
    change: str
    at_most: float
    where: list[str]

    def to_dict(self) -> dict[str, Any]:
        return {"cause": self.cause, "change": self.change, "gain_at_most": self.at_most, "where": self.where}


@dataclass(frozen=True)
class ScriptProfile:
    """Result of ``powerband profile -- COMMAND``.

    Attributes:
        command: The command line.
        run: The run of the script.
        ranks: Processes that train.
        processes: All processes with times in the window.
        facts: Figures besides the ledgers.
        diagnosis: Causes, and the mean ledger over ranks.
        advice: Changes, the one with the largest possible gain first.
        tried: Changes that were tried; None without ``--try``.
    """

    command: Sequence[str]
    run: ScriptRun
    ranks: list[ProcessTimes]
    processes: list[ProcessTimes]
    facts: WindowFacts
    diagnosis: Diagnosis
    advice: list[ScriptAdvice]
    tried: TriedChanges | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the profile as a JSON value with the keys of a recipe's profile, and the lines of code."""
        ledger, diagnosis = self.diagnosis.ledger, self.diagnosis
        leader = self.ranks[0]
        return {
            "command": list(self.command),
            "wall_s": ledger.wall_s,
            "ledger": ledger.seconds,
            "update_parts": leader.parts,
            "steps_per_s": self.facts.env_steps / ledger.wall_s,
            "updates_per_s": self.facts.grad_steps / ledger.wall_s,
            "cause": diagnosis.cause,
            "sentence": diagnosis.sentence,
            "findings": [
                {"cause": f.cause, "claim": f.explained_share, "sentence": f.sentence, "fix": f.fix}
                for f in diagnosis.findings
            ],
            "remarks": [*self.run.notes, *diagnosis.notes],
            "advice": [each.to_dict() for each in self.advice],
            "lines": [vars(line) for line in leader.lines[:100]],
            "start_up_s": self.run.start_up_s,
            "processes": [process_dict(each) for each in self.processes],
            "never_reported": [{"pid": each.pid, "command": each.command} for each in self.run.silent],
            "failures": failures(self.run),
            "ranks": [{"ledger": each.ledger.to_dict(), "facts": self.facts.to_dict()} for each in self.ranks],
            **({} if self.tried is None else self.tried.to_dict()),
        }

    def __str__(self) -> str:
        ledger, leader = self.diagnosis.ledger, self.ranks[0]
        lines = [
            f"{shlex.join(self.command)[:200]}: {ledger.wall_s:.1f} s, after {self.run.start_up_s:.1f} s of start-up"
        ]
        for rank, each in enumerate(self.ranks):
            lines += ["", *([f"rank {rank}"] if len(self.ranks) > 1 else []), each.ledger.table()]
        lines += ["", *_rates(self), *_where(leader.lines, ledger.wall_s), "", *self.diagnosis.lines(remedy=False)]
        lines += [f"note: {note}" for note in self.run.notes]
        for advice in self.advice:
            lines.append(f"advice: {advice.change} The upper bound is {advice.at_most:.2f} times the rate.")
            lines += [f"  {where}" for where in advice.where]
        for process in self.run.silent:
            lines.append(f"note: process {process.pid} never reported: {process.command[:120]}")
        if failed := failures(self.run):
            lines.append(
                f"note: the instrumentation failed {len(failed)} time(s); the first: {failed[0].splitlines()[-1]}"
            )
        return "\n".join(lines)


def script_profile(command: Sequence[str], run: ScriptRun) -> ScriptProfile | None:
    """Diagnoses the window of a run; None if no process has measured enough of it."""
    found = [process_times(record, run.start_ns, run.end_ns) for record in run.records]
    processes = [each for each in found if each is not None]
    if not processes:  # the script ended soon after its first updates, so everything counts
        found = [process_times(record, 0, run.end_ns) for record in run.records]
        processes = [each for each in found if each is not None]
        run.notes.append("no process reported twice in the window, so the report covers all time since the start")
    if not processes:
        return None
    ranks = ranks_of(processes)
    optimizers = ranks[0].record.of_kind("optimizer")
    if optimizers and optimizers[0]["device"].startswith("cuda") and ranks[0].device is None:
        run.notes.append("the kernels of the GPU were not recorded, so the time in which it waits is unknown")
    facts = facts_of(ranks, processes)
    diagnosis = diagnose([each.ledger for each in ranks], facts)
    advice = [_advice(finding, ranks[0]) for finding in diagnosis.findings]
    return ScriptProfile(command, run, ranks, processes, facts, diagnosis, advice)


def failures(run: ScriptRun) -> list[str]:
    """Returns the tracebacks of the instrumentation; there are none unless it has a bug."""
    return [line["text"] for record in run.records for line in record.of_kind("failure")]


def _advice(finding: Finding, leader: ProcessTimes) -> ScriptAdvice:
    accounts = ACCOUNTS_OF.get(finding.cause, ())
    where = [line_text(line, leader.ledger.wall_s) for line in leader.lines if line.account in accounts][:2]
    change = finding.fix
    loaders = leader.record.of_kind("loader")
    if finding.cause == "data-wait" and loaders:
        times = leader.record.of_kind("times")
        waited = {where: each[1] for where, each in times[-1].get("loaders", {}).items()} if times else {}
        now = max(loaders, key=lambda loader: waited.get(loader["where"], 0))  # a validation loader may come later
        change = (
            f"The loader has num_workers={now['num_workers']}, pin_memory={now['pin_memory']}, "
            f"persistent_workers={now['persistent_workers']}. {change}"
        )
    share = finding.explained_share
    if finding.cause == "log-blocking" and (whole := leader.logger_share) >= share + SHOWN_SHARE:
        change += (
            f" Other threads of the process, such as one that writes, hold up the loop for {whole - share:.0%} more."
        )
        share = whole
    return ScriptAdvice(finding.cause, change, 1 / max(1e-3, 1 - share), where)


def _rates(profile: ScriptProfile) -> list[str]:
    facts, wall_s, leader = profile.facts, profile.diagnosis.ledger.wall_s, profile.ranks[0]
    lines = []
    if facts.env_steps:
        names = ", ".join(sorted(leader.envs))
        workers = f", in {len(facts.worker_rows)} other process(es)" if facts.overlappable else ""
        lines.append(
            f"environments: {facts.num_envs} in {names}{workers}; {facts.env_steps / wall_s:,.0f} env steps/s, "
            f"{duration(leader.env_s)} each"
        )
    if facts.grad_steps:
        update_s = sum(leader.parts.values())
        parts = ", ".join(f"{name} {s / max(update_s, 1e-9):.0%}" for name, s in leader.parts.items())
        lines.append(f"updates: {facts.grad_steps / wall_s:,.1f} per second, {facts.precision}; of their time {parts}")
    if (device := leader.device) is not None:
        lines.append(
            f"GPU: it runs kernels for {device.busy:.0%} of the time, {device.kernels:,.0f} per update; the host waits "
            f"for it {device.syncs:,.1f} times per update, {duration(device.sync_s)} each"
        )
    return lines


def _where(lines: Sequence[Line], wall_s: float) -> list[str]:
    shown = [line for line in lines if line.seconds >= SHOWN_SHARE * wall_s and line.where][:SHOWN_LINES]
    return ["", "where:", *(f"  {line_text(line, wall_s)}" for line in shown)] if shown else []


def line_text(line: Line, wall_s: float) -> str:
    """Formats a place in the code: share of the wall time, account, and its lines."""
    text = f"{line.seconds / wall_s:>4.0%} {line.account:<10} {short_path(line.where)}"
    text += f", called from {short_path(line.caller)}" if line.caller else ""
    return text + (f", in {short_path(line.library)}" if line.library else "")


def short_path(place: str) -> str:
    """Shortens the path of ``path:line``: relative to the working folder, or from the package of a library on."""
    path, _, number = place.rpartition(":")
    if not path:  # no file is known, such as in an interactive interpreter
        return "?"
    for folder in Path(path).parents:
        if _holds_packages(folder):
            return f"{Path(path).relative_to(folder)}:{number}"
    relative = os.path.relpath(path)
    return f"{relative if not relative.startswith('..') else Path(path)}:{number}"


@functools.cache
def _holds_packages(folder: Path) -> bool:
    """Returns whether a folder is one into which packages are installed, such as by ``pip install --target``."""
    if folder.name in ("site-packages", "dist-packages"):
        return True
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def process_dict(each: ProcessTimes) -> dict[str, Any]:
    return {
        "pid": each.record.pid,
        "parent": each.record.ppid,
        "rank": each.record.start["rank"],
        "command": shlex.join(each.record.start["argv"])[:500],
        "wall_s": each.ledger.wall_s,
        "ledger": each.ledger.seconds,
        "cpu_s": each.ledger.cpu_s,
        "env_steps": each.env_steps,
        "updates": each.updates,
        "optimizer_steps": each.optimizer_steps,
    }
