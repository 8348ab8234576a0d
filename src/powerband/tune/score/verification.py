"""Verification: compares a setting with the present one on fresh seeds, in alternating runs of equal budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from powerband.tune.score.curve import time_to_score
from powerband.tune.score.options import MIN_VERIFICATION_SEEDS
from powerband.tune.score.restricted_mean import Ratio, ratio_of_means, restricted_mean
from powerband.tune.score.trials.trial import TrialRun

VERIFICATION_SEED = 10_000
"""Offset of the seeds of the verification, which no trial of the search uses."""

Runner = Callable[[int, float], TrialRun]
"""``(seed, limit in seconds of training) -> run``."""


@dataclass
class Verification:
    """Times to the score of a setting and of the present one, on the same fresh seeds.

    Attributes:
        budget: Seconds of training at which both are censored.
        seeds: Seeds of the complete pairs of runs.
        times, baseline: Seconds to the score per seed, of the setting and of the present one; None if not reached.
        messages: Reasons of runs that failed.
    """

    budget: float
    seeds: list[int] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)
    baseline: list[float | None] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> Ratio | None:
        """Ratio of the restricted mean times with its interval; None with fewer than three seeds."""
        if len(self.seeds) < MIN_VERIFICATION_SEEDS:
            return None
        return ratio_of_means(self.times, self.baseline, self.budget)

    @property
    def is_faster(self) -> bool:
        """Whether the setting is faster with non-overlapping intervals (`restricted_mean.Ratio.is_faster`)."""
        return self.ratio is not None and self.ratio.is_faster

    @property
    def saved_s(self) -> float:
        """Seconds of training that the setting saves per run, by the restricted means."""
        return restricted_mean(self.baseline, self.budget) - restricted_mean(self.times, self.budget)


def verified(
    setting: Runner,
    present: Runner,
    target: float,
    budget: float,
    seeds: int,
    first_seed: int,
    seconds_left: Callable[[], float],
) -> Verification:
    """Runs pairs of both settings, as many as `seeds` and the time allow. The order within a pair alternates.

    A run that fails counts as one that does not reach the score. A pair that the end of the time interrupts does not
    count.

    Args:
        setting, present: Run one setting with a seed.
        target: Score to reach.
        budget: Seconds of training of each run.
        seeds: Largest number of pairs.
        first_seed: Seed of the user.
        seconds_left: Returns the remaining seconds.
    """
    result, longest = Verification(budget), 0.0
    for index in range(seeds):
        if index and seconds_left() < longest:
            break
        began, pair = time.monotonic(), {}
        for runner in (setting, present) if index % 2 == 0 else (present, setting):
            pair[runner] = runner(first_seed + VERIFICATION_SEED + index, budget)
        if any(run.outcome == "stopped" for run in pair.values()):
            break
        longest = max(longest, time.monotonic() - began)
        result.seeds.append(first_seed + VERIFICATION_SEED + index)
        result.times.append(_time(pair[setting], target))
        result.baseline.append(_time(pair[present], target))
        result.messages += [run.message for run in pair.values() if run.message]
    return result


def _time(run: TrialRun, target: float) -> float | None:
    return None if run.outcome == "failed" else time_to_score(run.curve, target)
