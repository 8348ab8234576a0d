"""Verification: compares a setting with the present one in alternating runs of equal budget on new seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from powerband.tune.score.curve import time_to_score
from powerband.tune.score.options import MIN_VERIFICATION_SEEDS
from powerband.tune.score.restricted_mean import Ratio, ratio_of_means, restricted_mean
from powerband.tune.score.trials.trial import TrialRun

Runner = Callable[[int, float], TrialRun]
"""``(seed, limit in seconds of training) -> run``."""


@dataclass
class Verification:
    """Times to the score with a changed setting and with the present one, on seeds that the search did not use.

    Attributes:
        budget: Seconds of training after which a run ends.
        seeds: Seeds for which both runs are complete.
        times, baseline: Seconds to the score for each seed, with the changed and with the present setting; None if the
            run did not reach it.
        messages: Reasons why runs failed.
        longest_pair_s: Longest duration of two runs of a seed in seconds, with their start and evaluations.
    """

    budget: float
    seeds: list[int] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)
    baseline: list[float | None] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    longest_pair_s: float = 0.0

    @property
    def ratio(self) -> Ratio | None:
        """Ratio of the mean times to the score, changed to present setting; None with fewer than three seeds."""
        if len(self.seeds) < MIN_VERIFICATION_SEEDS:
            return None
        return ratio_of_means(self.times, self.baseline, self.budget)

    @property
    def is_faster(self) -> bool:
        """Whether the changed setting is faster and the confidence intervals of the mean times do not overlap."""
        return self.ratio is not None and self.ratio.is_faster

    @property
    def is_slower(self) -> bool:
        """Whether the interval of the ratio lies above 1, so that more seeds would hardly show a gain."""
        return self.ratio is not None and self.ratio.low > 1.0

    @property
    def saved_s(self) -> float:
        """Mean seconds of training per run that the changed setting saves.

        A run that does not reach the score counts as `budget`.
        """
        return restricted_mean(self.baseline, self.budget) - restricted_mean(self.times, self.budget)


def verified(
    setting: Runner,
    present: Runner,
    target: float,
    budget: float,
    seeds: Sequence[int],
    seconds_left: Callable[[], float],
) -> Verification:
    """Trains with a changed and with the present setting on the same seeds, in alternating order.

    A run that fails counts as one that does not reach the score. If the time ends within a pair of runs, the pair is
    discarded. A changed setting that is slower (`Verification.is_slower`) gets no further seeds.

    Args:
        setting, present: Functions ``(seed, limit in seconds of training) -> run`` that train with one of the settings.
        target: Score to reach.
        budget: Seconds of training of each run.
        seeds: Seeds of the pairs of runs; the last ones are left out if the time ends.
        seconds_left: Function that returns the remaining seconds of the time budget.
    """
    result = Verification(budget)
    for index, seed in enumerate(seeds):
        if index and seconds_left() < result.longest_pair_s:
            break
        began, pair = time.monotonic(), {}
        for runner in (setting, present) if index % 2 == 0 else (present, setting):
            pair[runner] = runner(seed, budget)
        if any(run.outcome == "stopped" for run in pair.values()):
            break
        result.longest_pair_s = max(result.longest_pair_s, time.monotonic() - began)
        result.seeds.append(seed)
        result.times.append(_time(pair[setting], target))
        result.baseline.append(_time(pair[present], target))
        result.messages += [run.message for run in pair.values() if run.message]
        if result.is_slower:
            break
    return result


def _time(run: TrialRun, target: float) -> float | None:
    return None if run.outcome == "failed" else time_to_score(run.curve, target)
