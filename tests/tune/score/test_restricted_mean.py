"""Restricted means and their ratio, by hand and by properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.tune.score.restricted_mean import ratio_of_means, restricted_mean

TIMES = st.lists(st.none() | st.floats(0.1, 200), min_size=1, max_size=6)


def test_a_censored_time_counts_the_budget() -> None:
    assert restricted_mean([10, None, 40], 30) == pytest.approx((10 + 30 + 30) / 3)


def test_the_interval_of_separated_groups_spans_their_extreme_ratios() -> None:
    ratio = ratio_of_means([10, 11, 12], [20, 22, 24], 100)
    assert ratio.value == pytest.approx(0.5) and ratio.is_faster
    assert ratio.low == pytest.approx(10 / 22, rel=0.05) and ratio.high == pytest.approx(12 / 22, rel=0.05)


def test_groups_that_overlap_or_that_never_reach_the_score_are_not_faster() -> None:
    assert not ratio_of_means([10, 30, 12], [20, 11, 24], 100).is_faster
    never = ratio_of_means([None, None, None], [None, None, None], 50)
    assert (never.value, never.low, never.high) == (1.0, 1.0, 1.0) and not never.is_faster
    assert ratio_of_means([10, 10, 10], [None, None, None], 50).is_faster


def test_equal_settings_rarely_pass_with_three_seeds() -> None:
    rng = np.random.default_rng(1)
    pairs = np.exp(rng.normal(0, 0.25, (400, 2, 3))).tolist()
    passed = sum(ratio_of_means(times, baseline, 1e9, samples=500).is_faster for times, baseline in pairs)
    assert passed / len(pairs) < 0.09


@settings(max_examples=30)
@given(TIMES, TIMES, st.floats(1, 100))
def test_the_interval_contains_the_ratio(times, baseline, budget) -> None:
    ratio = ratio_of_means(times, baseline, budget, samples=2000)
    assert ratio.low * 0.99 <= ratio.value <= ratio.high * 1.01


@given(TIMES, st.floats(1, 100))
def test_the_mean_is_never_above_the_budget(times, budget) -> None:
    assert 0 < restricted_mean(times, budget) <= budget + 1e-9
