"""Bootstrap intervals of repeated measurements."""

import numpy as np
import pytest

from powerband.bench.intervals import bootstrap_interval, median_interval


def test_the_interval_of_a_median_contains_the_true_one_at_about_its_rate():
    draws = np.random.default_rng(1).normal(3.0, 1.0, (100, 20))
    intervals = [median_interval(row) for row in draws]
    assert 0.88 <= np.mean([low <= 3.0 <= high for low, high in intervals]) <= 1.0
    assert median_interval(list(draws[0])) == intervals[0], "the same values have the same interval"


def test_groups_are_resampled_independently():
    low, high = bootstrap_interval(lambda groups: float(groups[0].mean() / groups[1].mean()), [[2.0, 4.0], [1.0, 1.0]])
    assert (low, high) == pytest.approx((2.0, 4.0))
