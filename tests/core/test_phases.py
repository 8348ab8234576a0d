from __future__ import annotations

import time

import pytest

from powerband import PhaseClock


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_accounts_are_exclusive_and_sum_to_the_wall_time():
    clock = PhaseClock()
    with clock("outer"):
        busy(0.02)
        with clock("inner"):
            busy(0.03)
        with clock("inner"):
            busy(0.01)
    busy(0.02)
    phases = clock.read()
    assert phases.host["outer"] == pytest.approx(0.02, abs=0.008)
    assert phases.host["inner"] == pytest.approx(0.04, abs=0.008)
    assert phases.host["other"] == pytest.approx(0.02, abs=0.008)
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
