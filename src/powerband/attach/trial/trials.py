"""Trials: the order of the runs with and without changes, their budget, and the result.

Runs are interleaved: unchanged, change 1, unchanged, change 2, ..., unchanged. Each round tries every change once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from powerband.attach.processes.script_run import ScriptOptions
from powerband.attach.trial.change import Change
from powerband.attach.trial.gain import Timed, gains_of
from powerband.attach.trial.plausible import LEAST_GAIN
from powerband.attach.trial.predict import gain_of
from powerband.attach.trial.trial_run import probed, timed_run
from powerband.attach.trial.tried import Tried, TriedChanges, best_first
from powerband.attach.trial.work import Work

Progress = Callable[[str, float], None]
"""Function of a text and the spent share of the time."""
RUN_OVERHEAD_S = 2.0
"""Seconds of a run besides start-up, warm-up and work: the copy, and the end of its processes."""

UNSTEADY = 1.3
"""Ratio of the fastest to the slowest unchanged run from which a note says that the gains are uncertain."""


class Trials:
    """Tries changes of one script.

    Args:
        command: Command line of the user.
        source: The user's working folder.
        work: The part of the script to time.
        start_up_s: Seconds of the first run before its window.
        update_share: Share of the time of updates in the first profile. A probe of bursts does not see it.
        options: Options of the command.
    """

    def __init__(
        self,
        command: Sequence[str],
        source: Path,
        work: Work,
        start_up_s: float,
        update_share: float,
        options: ScriptOptions,
    ) -> None:
        self.command, self.source, self.work = list(command), source, work
        self.start_up_s, self.update_share, self.options = start_up_s, update_share, options
        self.run_s = start_up_s + 1.5 + work.seconds + RUN_OVERHEAD_S
        self.began = time.monotonic()
        self.runs: list[Timed] = []
        self.errors: dict[int, str] = {}
        self.notes: list[str] = []
        self.changes: list[Change] = []

    def run(self, changes: Sequence[Change], progress: Progress) -> TriedChanges:
        """Tries the changes. Ctrl-C ends the trials, and the result has what is known so far.

        Args:
            changes: Plausible changes, the one with the largest predicted gain first.
            progress: Shows the present run and the spent share of the time.
        """
        try:
            self.changes = self._affordable(self._predicted(changes, progress))
            self._rounds(progress)
        except KeyboardInterrupt:
            self.notes.append("the trials were interrupted; this is what was known.")
        return self._result()

    def _predicted(self, changes: Sequence[Change], progress: Progress) -> list[Change]:
        """Predicts gains by a probe, and leaves out changes without a predicted gain."""
        probes = [change for change in changes if change.probed and self.work.unit == "updates"]
        if not probes:
            return list(changes)
        progress("probe of " + ", ".join(sorted({change.name for change in probes})), 0.0)
        gains, error = probed(self.command, self.source, probes, self.work, self.start_up_s)
        if error:
            self.notes.append(f"the probe failed, so some gains are not predicted: {error}")
        elif unsteady := [change.text for change, gain in zip(probes, gains, strict=True) if gain is None]:
            self.notes.append(f"not predicted, because the updates of the probe vary too much: {'; '.join(unsteady)}")
        share = self.update_share if self.work.bursts else 1.0
        known = {
            id(change): gain_of(1.0, 1.0 - share + share / (1.0 + gain))
            for change, gain in zip(probes, gains, strict=True)
            if gain is not None
        }
        changes = [change.with_prediction(known.get(id(change), change.predicted)) for change in changes]
        dropped = [change.text for change in changes if change.hope < LEAST_GAIN]
        if dropped:
            self.notes.append(f"not tried, because the probe has shown no gain: {'; '.join(dropped)}")
        return sorted((each for each in changes if each.hope >= LEAST_GAIN), key=lambda each: -each.hope)

    def _affordable(self, changes: list[Change]) -> list[Change]:
        """Returns the changes for which the budget suffices, one at least."""
        left = self.options.try_budget - (time.monotonic() - self.began)
        number = max(1, int((left / self.run_s - 1) / (2 * self.options.try_runs)))
        if changes[number:]:
            names = "; ".join(change.text for change in changes[number:])
            self.notes.append(f"not tried, because try_budget={self.options.try_budget:g} ends before: {names}")
        return changes[:number]

    def _rounds(self, progress: Progress) -> None:
        total = 2 * self.options.try_runs * len(self.changes) + 1
        done = 0
        for _ in range(self.options.try_runs):
            for index in range(len(self.changes)):
                if index in self.errors:
                    total -= 2
                    continue
                for each in (None, index):
                    self._one(each, progress, done, total)
                    done += 1
        if self.runs:
            self._one(None, progress, done, total)

    def _one(self, index: int | None, progress: Progress, done: int, total: int) -> None:
        change = None if index is None else self.changes[index]
        spent = time.monotonic() - self.began
        left = (total - done) * self.run_s
        progress(f"run {done + 1} of {total}: {change.text if change else 'unchanged'}", spent / (spent + left))
        began = time.monotonic()
        run = timed_run(self.command, self.source, change, self.work, self.start_up_s)
        self.run_s = 0.7 * self.run_s + 0.3 * (time.monotonic() - began)
        if run.rate is not None:
            self.runs.append(Timed(index, run.rate))
        elif index is not None:
            self.errors[index] = run.error or "it was more than three times slower, or ended early"
        else:
            self.notes.append(f"a run without a change failed: {run.error or 'it was too slow'}")

    def _result(self) -> TriedChanges:
        gains = gains_of(self.runs, len(self.changes), self.options.try_runs)
        tried = [
            Tried(
                change,
                gains[index],
                [run.rate for run in self.runs if run.change == index],
                self.errors.get(index, ""),
            )
            for index, change in enumerate(self.changes)
        ]
        rates = [run.rate for run in self.runs if run.change is None]
        if rates and max(rates) > UNSTEADY * min(rates):
            self.notes.append(
                f"the unchanged runs differ by a factor of {max(rates) / min(rates):.2f}, so the gains are uncertain: "
                f"the machine does other work, or the script varies."
            )
        return TriedChanges(best_first(tried), self.work.unit, rates, self.notes)
