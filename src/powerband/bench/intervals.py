"""Intervals of repeated measurements, by bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

DRAWS = 2_000
"""Resamplings of a bootstrap."""


def bootstrap_interval(statistic: Callable[[list[Any]], float], groups: Sequence[Any]) -> tuple[float, float]:
    """Returns the 95 % percentile bootstrap interval of a statistic; equal values give equal intervals.

    Args:
        statistic: Function of the resampled groups.
        groups: Values (n,) of each group; every group is resampled with replacement, independently of the others.
    """
    generator = np.random.default_rng(0)
    arrays = [np.asarray(group) for group in groups]
    values = [
        statistic([array[generator.integers(len(array), size=len(array))] for array in arrays]) for _ in range(DRAWS)
    ]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def median_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval of the median of `values` (n,)."""
    return bootstrap_interval(lambda groups: float(np.median(groups[0])), [values])
