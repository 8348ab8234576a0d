from __future__ import annotations

import pytest

from powerband.core.telemetry import time_left
from powerband.core.telemetry.time_left import FirstRate, TimeLeftEstimator


def test_time_left_follows_the_recent_intervals_and_not_the_mean() -> None:
    fast = TimeLeftEstimator(100_000, 0)
    for _ in range(20):
        fast.add(1000, 10)
    for _ in range(5):
        fast.add(100, 10)
    assert fast.rate == pytest.approx(10)
    assert fast.left_s(20_500, 250) == pytest.approx(79_500 / 10)


def test_random_steps_before_the_first_update_do_not_count() -> None:
    learner = TimeLeftEstimator(100_000, 0)
    for _ in range(3):
        learner.add(5000, 5.0, updates=0)
        assert learner.left_s(15_000, 15) is None, "the rate of updates is not known yet"
    learner.add(2000, 5.0, updates=400)  # learning began in this interval
    learner.add(500, 5.0, updates=500)
    assert learner.left_s(17_500, 25) == pytest.approx(82_500 / 100)
    limited = TimeLeftEstimator(100_000, 60)
    limited.add(5000, 5.0, updates=0)
    assert limited.left_s(5000, 5) == 55
    at_once = TimeLeftEstimator(100_000, 0)
    at_once.add(500, 5.0, updates=4)
    assert at_once.left_s(500, 5) == pytest.approx(99_500 / 100)


def test_short_intervals_are_combined() -> None:
    short = TimeLeftEstimator(100_000, 0)
    for steps in [1000] * 100 + [0, 4000]:
        short.add(steps, 1.0)
    assert short.rate == pytest.approx((19 * 1000 + 4000) / 20)


def test_remaining_evaluations_and_checkpoints_are_counted() -> None:
    both = TimeLeftEstimator(10_000, 0, eval_interval=1000, save_interval=5000)
    both.add(2500, 25 + 8, {"eval": (6.0, 2), "save": (0.0, 0)})
    both.add(2600, 26 + 10, {"eval": (9.0, 3), "save": (2.0, 1)})
    assert both.rate == pytest.approx(5100 / (27 + 25)), "the rate excludes evaluations and checkpoints"
    evals, saves = 5 * 15.0 / 5, 1 * 2.0
    assert both.left_s(5100, 69) == pytest.approx(4900 / both.rate + evals + saves)


def test_what_happens_by_the_clock_keeps_its_share_of_the_time() -> None:
    clock = TimeLeftEstimator(10_000, 0, save_interval=5000)
    clock.add(1000, 10 + 5 + 2, {"eval": (5.0, 1), "save": (2.0, 1)})
    assert clock.left_s(1000, 17) == pytest.approx(9000 * 15 / 1000 + 2 * 2.0)


def test_the_budget_that_ends_first_determines_the_time_left() -> None:
    limited = TimeLeftEstimator(1000, 60)
    assert limited.left_s(0, 10) == 50, "the time limit is known before the first rate"
    limited.add(100, 10)
    assert limited.left_s(100, 10) == 50
    assert limited.left_s(900, 45) == 10
    assert limited.share(100, 30) == 0.5 and limited.share(1000, 30) == 1.0
    assert TimeLeftEstimator(1000, 0).left_s(0, 5) is None


def test_the_first_rate_excludes_the_start_and_the_first_update(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time_left, "running_time", lambda: now[0])
    first = FirstRate()
    for moment, env_steps, grad_steps in [(0, 100, 0), (9, 200, 1), (10, 210, 2), (11, 230, 3)]:
        now[0] = moment
        assert not first.ready(env_steps, grad_steps)
    now[0] = 12.5
    assert first.ready(260, 7)
    assert first.seconds == 2.5 and first.rate == 20 and first.updates == 2
