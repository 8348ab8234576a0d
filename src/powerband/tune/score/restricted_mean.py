"""Restricted mean time: compares times to a score of which some are censored, because a run did not reach the score.

A censored time counts as the budget of the run, so the mean is the restricted mean survival time up to the budget.
Source: Royston and Parmar 2013, "Restricted mean survival time", doi:10.1186/1471-2288-13-152.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Times = Sequence[float | None]
"""Seconds to the score, one per seed; None if a run did not reach it."""


@dataclass(frozen=True)
class Ratio:
    """Ratio of two restricted means with its bootstrap interval; below 1 the first setting is faster."""

    value: float
    low: float
    high: float

    @property
    def is_faster(self) -> bool:
        """Whether the interval lies entirely below 1."""
        return self.high < 1.0


def restricted(times: Times, budget: float) -> list[float]:
    """Returns the times with each one above `budget`, or missing, replaced by `budget`."""
    return [budget if time is None else min(time, budget) for time in times]


def restricted_mean(times: Times, budget: float) -> float:
    """Returns the mean of `restricted`, in seconds. At least one time is required."""
    values = restricted(times, budget)
    return sum(values) / len(values)


def ratio_of_means(
    times: Times, baseline: Times, budget: float, confidence: float = 0.95, samples: int = 10_000
) -> Ratio:
    """Compares the restricted means of two settings by a percentile bootstrap over seeds.

    Args:
        times: Times of a setting, one per seed.
        baseline: Times of the setting that it is compared with.
        budget: Seconds at which both are censored.
        confidence: Coverage of the interval.
        samples: Bootstrap samples.

    Returns:
        The restricted mean of `times` divided by that of `baseline`.
    """
    rng = np.random.default_rng(0)
    means = []
    for group in (times, baseline):
        values = np.array(restricted(group, budget))
        means.append(values[rng.integers(len(values), size=(samples, len(values)))].mean(1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(means[0] / np.maximum(means[1], 1e-9), [tail, 1 - tail])
    value = restricted_mean(times, budget) / max(restricted_mean(baseline, budget), 1e-9)
    return Ratio(value, float(low), float(high))
