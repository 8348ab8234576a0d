"""Times to a score on curves that were computed by hand, and properties of the value of a trial."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.tune.score.curve import (
    CurvePoint,
    best_score,
    is_unconfirmed,
    time_to_score,
    trial_seconds,
    unfinished_seconds,
)


def curve(*scores: float) -> list[CurvePoint]:
    """A curve with an evaluation every 100 steps and every 2 seconds."""
    return [CurvePoint(100 * (i + 1), 2.0 * (i + 1), score) for i, score in enumerate(scores)]


CURVES = st.lists(st.floats(-100, 100), max_size=30).map(lambda scores: curve(*scores))


def test_the_first_of_three_successive_evaluations_counts() -> None:
    assert time_to_score(curve(0, 5, 9, 10, 10, 12), 10) == 8.0
    assert time_to_score(curve(10, 10, 9, 10, 11, 9, 10, 10, 10), 10) == 14.0
    assert time_to_score(curve(10, 10, 9, 10, 10), 10) is None
    assert time_to_score(curve(0, 10), 10, consecutive=1) == 4.0
    assert time_to_score([], 10) is None


def test_the_next_evaluations_decide_about_a_score_that_was_reached_within_the_limit() -> None:
    assert is_unconfirmed(curve(0, 10), 10, seconds=4.0)
    assert is_unconfirmed(curve(0, 10, 11), 10, seconds=4.0)
    assert not is_unconfirmed(curve(0, 10, 11), 10, seconds=3.9)  # the first of them came too late
    assert not is_unconfirmed(curve(10, 10, 9), 10, seconds=60.0)
    assert not is_unconfirmed(curve(10, 10, 10), 10, seconds=60.0)  # confirmed
    assert not is_unconfirmed([], 10, seconds=60.0)


def test_an_unfinished_trial_counts_the_budget_and_its_missing_share() -> None:
    assert unfinished_seconds(60, target=100, best=75, start=0) == 75.0
    assert unfinished_seconds(60, target=100, best=None, start=0) == 120.0
    assert unfinished_seconds(60, target=-200, best=-500, start=-1400) == 75.0
    assert unfinished_seconds(60, target=100, best=130, start=0) == 60.0  # one lucky evaluation above the target
    assert unfinished_seconds(60, target=5, best=4, start=6) == 72.0  # the untrained policy was above the target


def test_a_limit_hides_later_evaluations() -> None:
    points = curve(1, 4, 10, 10, 10)
    assert trial_seconds(points, 20, target=10, start=0) == 6.0
    assert trial_seconds(points, 20, target=10, start=0, limit=4) == pytest.approx(20 * 1.6)
    assert trial_seconds(points, 5, target=10, start=0) == 5.0  # reached, but after the budget
    assert best_score(points, 4) == 4 and best_score(points, 1) is None


@given(CURVES, st.floats(-100, 100), st.floats(1, 100))
def test_any_unfinished_trial_is_worse_than_any_finished_one(points, target, budget) -> None:
    value = trial_seconds(points, budget, target, start=-101)
    reached = time_to_score(points, target)
    assert (value == reached) if reached is not None and reached <= budget else value >= budget


@given(CURVES, st.floats(-100, 100), st.floats(0, 60), st.floats(0, 60))
def test_the_value_never_grows_with_more_evaluations(points, target, a, b) -> None:
    early, late = (trial_seconds(points, 100, target, -101, limit) for limit in sorted((a, b)))
    assert late <= early


@given(CURVES, st.floats(-100, 100), st.floats(0, 50))
def test_a_lower_target_is_never_reached_later(points, target, drop) -> None:
    hard, easy = time_to_score(points, target), time_to_score(points, target - drop)
    assert hard is None or (easy is not None and easy <= hard)
