"""The time of kernels is assigned to the accounts in which they run."""

import pytest

from powerband.core.telemetry.phase_clock import PhaseClock
from powerband.tune.measure.kernel_trace import busy_s

SWITCHES = [(0, "other"), (1000, "env"), (2000, "act"), (3000, "other"), (4000, "other")]


def test_kernels_count_in_the_account_in_which_they_run():
    kernels = [(1100, 1200), (1900, 2300), (2600, 2700), (3500, 3600)]
    assert busy_s(kernels, SWITCHES) == pytest.approx({"env": 200e-9, "act": 400e-9, "other": 100e-9})


def test_kernels_at_the_same_time_count_once():
    assert busy_s([(1100, 1500), (1200, 1300), (1400, 1600)], SWITCHES) == pytest.approx({"env": 500e-9})


def test_a_kernel_may_cover_several_accounts():
    assert busy_s([(500, 3500)], SWITCHES) == pytest.approx({"other": 1000e-9, "env": 1000e-9, "act": 1000e-9})


def test_no_kernels_and_kernels_of_another_clock_give_no_shares():
    assert busy_s([], SWITCHES) is None
    assert busy_s([(10**12, 10**12 + 500)], SWITCHES) is None


def test_switches_end_with_the_recording():
    clock = PhaseClock()
    switches = clock.record_switches()
    with clock("env"):
        pass
    clock.stop_switches()
    assert clock.switches is None and switches[0][1] == switches[-1][1] == "other"
    assert switches[0][0] <= switches[-1][0]
