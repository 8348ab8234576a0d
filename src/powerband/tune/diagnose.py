"""Diagnose: the rules of the causes on a ledger and the facts beside it; the largest claim is the first cause."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from powerband.core.phases import PhaseClock
from powerband.tune import causes as limit
from powerband.tune import probes
from powerband.tune.case import Case, Finding
from powerband.tune.facts import Facts
from powerband.tune.ledger import Ledger, duration
from powerband.tune.rules import RULES


@dataclass(frozen=True)
class Diagnosis:
    """What binds a run.

    Attributes:
        cause: Id of the first cause, "healthy" where there is none.
        sentence: Its sentence.
        findings: All causes that hold, the largest claim first.
        remarks: What else should be known to read the figures.
        ledger: What was judged: the mean over ranks.
    """

    cause: str
    sentence: str
    findings: list[Finding]
    remarks: list[str]
    ledger: Ledger

    @property
    def exit_code(self) -> int:
        return limit.CAUSES[self.cause][0]

    def __str__(self) -> str:
        lines = [self.ledger.table(), "", f"{self.cause}: {self.sentence}"]
        lines += [f"  do: {self.findings[0].fix}"] if self.findings else []
        lines += [f"also {each.cause}: {each.sentence}" for each in self.findings[1:]]
        return "\n".join([*lines, *(f"note: {remark}" for remark in self.remarks)])


def diagnose(
    measured: PhaseClock | Ledger | Sequence[Ledger],
    facts: Facts | None = None,
    remarks: Sequence[str] = (),
    *,
    update: Callable[[Any], object] | None = None,
    batch: Any = None,
) -> Diagnosis:
    """Says where the time of a loop goes and what binds it.

    Args:
        measured: A clock whose spans cover the loop; or the ledgers of all ranks.
        facts: What else is known; a clock alone is judged by its accounts.
        remarks: Put before those that are found here.
        update, batch: One update of the loop and a batch for it (a tensor, or dicts, lists, tuples of them, rows
            first). It is timed by itself, once the clock was read, which tells a tiny batch, questions to tensors and
            too many threads from slow updates. It learns from the batch some dozen times: diagnose at the end.
    """
    if isinstance(measured, PhaseClock):
        measured = Ledger.of(measured.whole())
    ledgers = [measured] if isinstance(measured, Ledger) else list(measured)
    if update is not None:
        facts = probes.of_loop(update, batch, ledgers[0])
    known, facts = facts is not None, facts or Facts()
    mean = _mean(ledgers)
    notes = [*remarks, *_remarks(mean, facts)]
    spans = max((figures.count for figures in mean.spans.values()), default=0)
    if mean.wall_s < limit.LEAST_SECONDS or (facts.iterations if known else spans) < limit.LEAST_ITERATIONS:
        seen = f"{facts.iterations if known else spans} iterations in {duration(mean.wall_s)}"
        return Diagnosis("too-short", f"Only {seen} were seen, too few to judge. Measure longer.", [], notes, mean)
    claimed: dict[str, float] = {}
    findings = []
    for rule in RULES:
        finding = rule(Case(mean, ledgers, facts, claimed))
        if finding is not None:
            findings.append(finding)
            claimed[finding.explains] = claimed.get(finding.explains, 0.0) + finding.claim
    findings.sort(key=lambda each: -each.claim)
    if findings:
        return Diagnosis(findings[0].cause, findings[0].sentence, findings, notes, mean)
    top = sorted((name for name in mean.seconds), key=mean.seconds.get, reverse=True)[:3]
    shares = ", ".join(f"{name} {mean.share(name):.0%}" for name in top)
    return Diagnosis("healthy", f"No account binds alone: {shares}.", [], notes, mean)


def _remarks(ledger: Ledger, facts: Facts) -> list[str]:
    notes = []
    if not facts.settled:
        notes.append("the run never settled: start-up is part of these figures. Raise seconds.")
    busy = facts.host.busy_cores
    if busy is not None and facts.cores:
        others = busy - (ledger.cpu_s * max(1, facts.world_size) + facts.env_cpu_s) / ledger.wall_s
        if others >= limit.OTHER_LOAD * facts.cores:
            notes.append(f"other processes use {others:.1f} of {facts.cores} cores: the figures are pessimistic.")
    queued = facts.host.loop_queue_s
    if queued is not None and queued >= limit.QUEUED * ledger.wall_s:
        notes.append(f"the loop's own thread was ready and had no core for {queued / ledger.wall_s:.0%} of the time.")
    if ledger.share("other") >= 0.05:
        notes.append(f"{ledger.share('other'):.0%} of the time is in no span.")
    return notes


def _mean(ledgers: Sequence[Ledger]) -> Ledger:
    """The mean ledger over ranks; durations of spans are the first rank's."""
    if len(ledgers) == 1:
        return ledgers[0]
    names = dict.fromkeys(name for ledger in ledgers for name in ledger.seconds)

    def mean(values: Callable[[Ledger], float]) -> float:
        return statistics.mean(values(ledger) for ledger in ledgers)

    seconds = {name: mean(lambda ledger, name=name: ledger.seconds.get(name, 0.0)) for name in names}
    cpu_s, thread_s = mean(lambda ledger: ledger.cpu_s), mean(lambda ledger: ledger.thread_s)
    return Ledger(mean(lambda ledger: ledger.wall_s), seconds, ledgers[0].spans, ledgers[0].device, cpu_s, thread_s)
