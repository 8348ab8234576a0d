"""Gain: the ratio of the rates of interleaved runs, and its bootstrap interval.

Each changed run is compared with the runs without the change before and after it. Each unchanged run between two others
is compared in the same way, which shows the noise of the machine. The bootstrap draws from the deviations of all pairs,
so three runs of a change suffice for an interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 4000
LEVEL = 0.95


@dataclass(frozen=True)
class Timed:
    """A finished run.

    Attributes:
        change: Index of the change; None for a run without one.
        rate: Iterations per second.
    """

    change: int | None
    rate: float


@dataclass(frozen=True)
class Gain:
    """Realised gain of a change, as a share of the rate.

    Attributes:
        gain: Gain from the mean over the runs.
        low, high: Interval; both None with fewer runs than asked for.
        runs: Number of runs.
    """

    gain: float
    low: float | None
    high: float | None
    runs: int


def gains_of(runs: Sequence[Timed], changes: int, least_runs: int, seed: int = 0) -> list[Gain | None]:
    """Returns the gain of each change; None for a change without a run.

    Args:
        runs: Runs in the order in which they were made.
        changes: Number of changes.
        least_runs: Runs of a change that an interval needs.
        seed: Seed of the bootstrap.
    """
    pairs: list[list[float]] = [[] for _ in range(changes)]
    for index, run in enumerate(runs):
        around = _neighbours(runs, index)
        if run.change is not None and around:
            pairs[run.change].append(math.log(run.rate) - statistics.mean(around))
    deviations = _deviations(runs, pairs)
    rng = np.random.default_rng(seed)
    found: list[Gain | None] = []
    for values in pairs:
        if not values:
            found.append(None)
            continue
        mean = statistics.mean(values)
        low = high = None
        if len(values) >= least_runs:
            drawn = mean + rng.choice(deviations, (DRAWS, len(values))).mean(axis=1)
            tail = 100 * (1 - LEVEL) / 2
            low, high = (float(np.expm1(each)) for each in np.percentile(drawn, [tail, 100 - tail]))
        found.append(Gain(math.expm1(mean), low, high, len(values)))
    return found


def _neighbours(runs: Sequence[Timed], index: int) -> list[float]:
    """Returns the logarithms of the rates of the nearest unchanged runs before and after a run."""
    before = [run.rate for run in runs[:index] if run.change is None][-1:]
    after = [run.rate for run in runs[index + 1 :] if run.change is None][:1]
    return [math.log(rate) for rate in (*before, *after)]


def _deviations(runs: Sequence[Timed], pairs: Sequence[Sequence[float]]) -> list[float]:
    """Returns the deviations of pairs: of changed runs from their mean, of unchanged runs from their neighbours.

    Those of n runs from their own mean are smaller than the noise, by the factor sqrt((n - 1) / n).
    """
    found = [
        math.sqrt(len(values) / (len(values) - 1)) * (value - statistics.mean(values))
        for values in pairs
        if len(values) > 1
        for value in values
    ]
    for index, run in enumerate(runs):
        if run.change is None and len(around := _neighbours(runs, index)) == 2:
            found.append(math.log(run.rate) - statistics.mean(around))
    return [*found, *(-each for each in found)] or [0.0]  # noise has no direction
