"""The time of kernels is assigned to the accounts in which they run."""

import time
from types import SimpleNamespace

import pytest
import torch

from powerband.core.telemetry.phase_clock import PhaseClock, PhaseTimes
from powerband.tune.measure import kernel_trace
from powerband.tune.measure.kernel_trace import KernelTrace, busy_s

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


def test_shares_are_those_of_a_window_without_the_profiler(monkeypatch):
    """The traced iterations may be slower: only the times of the kernels come from the trace."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: SimpleNamespace(start=int, stop=int))
    clock = PhaseClock()
    trace = KernelTrace(clock, iterations=2)
    begin = trace._switches[0][0]
    kernels = [(begin + 100, begin + 1_000_100), (begin + 2_000_000, begin + 3_000_000)]  # 2 ms in 2 iterations
    monkeypatch.setattr(kernel_trace, "kernel_intervals_ns", lambda _: kernels)
    trace._switches += [(begin + 100, "policy"), (begin + 1_500_000, "update")]
    assert not trace.iteration_ends() and trace.iteration_ends()
    time.sleep(0.004)
    window = PhaseTimes(0.1, {"act": 0.02, "update": 0.06, "eval": 0.01, "other": 0.01}, {}, 0.1, {})
    shares = trace.shares(window, iterations=10)
    assert shares == pytest.approx({"act": 0.25, "update": 1 / 12, "eval": 0.0, "other": 0.0, "wall": 0.1}, rel=1e-3)
    assert clock.switches is None
