"""Diagnosis: finds the bottlenecks of a run from its time per category; the one that explains most time comes first."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from powerband.core.telemetry.phase_clock import PhaseClock
from powerband.tune.diagnose import causes as limit
from powerband.tune.diagnose.evidence import Evidence, Finding
from powerband.tune.diagnose.general_rules import GENERAL_RULES
from powerband.tune.diagnose.special_rules import SPECIAL_RULES
from powerband.tune.measure import probes
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import Ledger, duration


@dataclass(frozen=True)
class Diagnosis:
    """Bottlenecks of a run.

    Attributes:
        cause: Id of the first cause, a key of `CAUSES`; "healthy" if no cause applies.
        sentence: Description of the first cause with its figures.
        findings: All causes that apply; the one that explains most time comes first.
        notes: Remarks about conditions that distort the figures.
        ledger: Wall time per account (category of time), mean over ranks, on which the diagnosis is based.
    """

    cause: str
    sentence: str
    findings: list[Finding]
    notes: list[str]
    ledger: Ledger

    @property
    def exit_code(self) -> int:
        """Exit code of ``powerband profile`` for the first cause; 0 if no cause applies."""
        return limit.CAUSES[self.cause][0]

    def lines(self, remedy: bool = True) -> list[str]:
        """Returns the diagnosis as lines of text: causes, remedy and notes, without the table of times.

        Args:
            remedy: Whether the remedy of the first cause is included.
        """
        lines = [f"{self.cause}: {self.sentence}"]
        lines += [f"  do: {self.findings[0].fix}"] if self.findings and remedy else []
        lines += [f"also {each.cause}: {each.sentence}" for each in self.findings[1:]]
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def __str__(self) -> str:
        return "\n".join([self.ledger.table(), "", *self.lines()])


def diagnose(
    measured: PhaseClock | Ledger | Sequence[Ledger],
    facts: WindowFacts | None = None,
    notes: Sequence[str] = (),
    *,
    update: Callable[[Any], object] | None = None,
    batch: Any = None,
) -> Diagnosis:
    """Finds the bottlenecks of a training loop.

    Args:
        measured: `PhaseClock` that timed the loop, or one ledger (wall time per category) for each rank.
        facts: Other figures of the measured part of the run, such as its steps. None uses the times alone.
        notes: Remarks to put before those of the diagnosis.
        update: Function that makes one update with a batch. It is timed here, which separates small batches,
            host-device synchronisations and too many threads from slow updates. It learns from the batch some dozen
            times, so call `diagnose` at the end of training. None times no updates.
        batch: Batch for `update`: a tensor, or nested dicts, lists and tuples of tensors whose first axis is the batch.

    Returns:
        The diagnosis. Its cause is "too-short" if `measured` has too few iterations or seconds.
    """
    if isinstance(measured, PhaseClock):
        measured = Ledger.from_phases(measured.read_total())
    ledgers = [measured] if isinstance(measured, Ledger) else list(measured)
    if update is not None:
        facts = probes.measure_loop_update(update, batch, ledgers[0])
    mean = _mean(ledgers)
    spans = max((figures.count for figures in mean.spans.values()), default=0)
    iterations = spans if facts is None else facts.iterations
    facts = facts or WindowFacts()
    notes = [*notes, *_notes(mean, facts)]
    if mean.wall_s < limit.MIN_SECONDS or iterations < limit.MIN_ITERATIONS:
        size = f"{iterations} iterations in {duration(mean.wall_s)}"
        return Diagnosis("too-short", f"{size} are too few for a diagnosis. Measure longer.", [], notes, mean)
    explained_by_account: dict[str, float] = {}
    findings = []
    for rule in (*SPECIAL_RULES, *GENERAL_RULES):
        finding = rule(Evidence(mean, ledgers, facts, explained_by_account))
        if finding is not None:
            findings.append(finding)
            explained = explained_by_account.get(finding.account_group, 0.0) + finding.explained_share
            explained_by_account[finding.account_group] = explained
    findings.sort(key=lambda each: -each.explained_share)
    if findings:
        return Diagnosis(findings[0].cause, findings[0].sentence, findings, notes, mean)
    largest = sorted(mean.seconds, key=mean.seconds.__getitem__, reverse=True)[:3]
    shares = ", ".join(f"{name} {mean.share(name):.0%}" for name in largest)
    return Diagnosis("healthy", f"No single account limits the run: {shares}.", [], notes, mean)


def _notes(ledger: Ledger, facts: WindowFacts) -> list[str]:
    """Returns remarks about conditions that distort the figures."""
    notes = []
    if not facts.steady_state:
        notes.append("the run never reached a steady state: the figures include start-up. Raise seconds.")
    if ledger.device and facts.steady_state and facts.device_busy is None:
        notes.append("the kernels of the GPU were not recorded, so the time in which it waits is unknown.")
    busy = facts.host.busy_cores
    if busy is not None and facts.cores:
        others = busy - (ledger.cpu_s + facts.env_cpu_s) * max(1, facts.world_size) / ledger.wall_s
        if others >= limit.OTHER_LOAD * facts.cores:
            notes.append(f"other processes use {others:.1f} of {facts.cores} cores: the figures are pessimistic.")
    queued = facts.host.loop_queue_s
    if queued is not None and queued >= limit.CPU_QUEUE * ledger.wall_s:
        share = queued / ledger.wall_s
        notes.append(f"the thread of the loop was ready to run and had no core for {share:.0%} of the time.")
    if ledger.share("other") >= limit.UNCOVERED:
        notes.append(f"no span covers {ledger.share('other'):.0%} of the time.")
    return notes


def _mean(ledgers: Sequence[Ledger]) -> Ledger:
    """Returns the mean ledger over ranks, with the span durations of the first rank."""
    if len(ledgers) == 1:
        return ledgers[0]
    names = dict.fromkeys(name for ledger in ledgers for name in ledger.seconds)

    def mean(value: Callable[[Ledger], float]) -> float:
        return statistics.mean(value(ledger) for ledger in ledgers)

    return Ledger(
        mean(lambda ledger: ledger.wall_s),
        {name: statistics.mean(ledger.seconds.get(name, 0.0) for ledger in ledgers) for name in names},
        ledgers[0].spans,
        ledgers[0].device,
        mean(lambda ledger: ledger.cpu_s),
        mean(lambda ledger: ledger.thread_s),
        {name: statistics.mean(each.launch.get(name, 0.0) for each in ledgers) for name in names},
    )
