from __future__ import annotations

import time

import pytest

from powerband import PhaseClock


def busy(seconds: float) -> float:
    """Loops for at least `seconds`. Returns the actual duration, because a shared machine may interrupt the loop."""
    start = time.perf_counter()
    while time.perf_counter() < start + seconds:
        pass
    return time.perf_counter() - start


def test_accounts_are_exclusive_and_sum_to_the_wall_time():
    clock = PhaseClock()
    with clock("outer"):
        outer = busy(0.02)
        with clock("inner"):
            inner = busy(0.03)
        with clock("inner"):
            inner += busy(0.01)
    other = busy(0.02)
    phases = clock.read()
    assert phases.host["outer"] == pytest.approx(outer, abs=0.005)
    assert phases.host["inner"] == pytest.approx(inner, abs=0.005)
    assert phases.host["other"] == pytest.approx(other, abs=0.005)
    assert sum(phases.host.values()) == pytest.approx(phases.wall_s, rel=1e-6)
    assert phases.counts == {"outer": 1, "inner": 2}
    assert "inner" in str(phases)


def test_read_starts_a_new_interval():
    clock = PhaseClock()
    with clock("env"):
        busy(0.01)
    clock.read()
    assert clock.read().host["env"] == 0.0


def test_a_span_ends_when_its_block_raises():
    clock = PhaseClock()
    with pytest.raises(RuntimeError), clock("env"):
        raise RuntimeError
    assert clock.read().counts["env"] == 1


def test_a_disabled_clock_counts_nothing():
    clock = PhaseClock(enabled=False)
    with clock("env"):
        pass
    assert clock.read().counts == {}


def test_span_durations_have_a_histogram():
    clock = PhaseClock()
    for seconds in (0.001, 0.001, 0.001, 0.02):
        with clock("outer"):
            busy(seconds)
            with clock("inner"):
                busy(0.005)
    phases = clock.read()
    assert phases.worst_s["outer"] >= 0.02 and phases.worst_s["outer"] < 0.02 + 0.02
    assert 0.0008 < phases.quantile_s("outer", 0.5) < 0.002, "the outer span excludes the inner span"
    assert phases.quantile_s("outer", 1.0) > 0.016 and phases.quantile_s("nothing", 0.5) == 0.0
    assert phases.mean_s("inner") >= 0.005


def test_the_total_is_the_sum_of_the_intervals_since_the_restart():
    clock = PhaseClock()
    for _ in range(3):
        with clock("env"):
            busy(0.002)
        clock.read()
    with clock("act"):
        busy(0.002)
    total = clock.read_total()
    assert total.counts == {"env": 3, "act": 1} and sum(total.bins["env"]) == 3
    assert sum(total.host.values()) == pytest.approx(total.wall_s, rel=1e-6) and total.thread_s > 0
    clock.restart()
    assert clock.read_total().counts == {"env": 0, "act": 0}
