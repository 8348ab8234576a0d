"""Signals that end a run: several ranks report one reason and status, and repeated signals do not interrupt saving."""

from __future__ import annotations

import signal
import time

import pytest

from powerband.core.run import stop_request
from powerband.core.run.stop_request import StopRequest


@pytest.fixture
def request_(monkeypatch):
    monkeypatch.setattr(stop_request, "REPEATED_S", 0.05)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup around the tests would ignore it
    stop = StopRequest(time_limit_s=60)
    stop.handle_signals()
    yield stop
    stop.restore_handlers()
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP"])
def test_a_signal_ends_the_run_with_its_status_and_may_come_again(request_: StopRequest, name: str) -> None:
    assert not request_.pending(1)
    for _ in range(3):
        signal.raise_signal(signal.Signals[name])
    assert request_.pending(1)
    request_.accept([request_.own_reason()])
    assert request_.reason == f"{name}: saved" and request_.exit_status == 128 + signal.Signals[name]


def test_a_second_interrupt_ends_at_once(request_: StopRequest) -> None:
    signal.raise_signal(signal.SIGINT)
    time.sleep(0.06)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ranks_report_the_signal_of_another_rank(request_: StopRequest) -> None:
    request_.accept([("", ""), ("SIGTERM", "")])
    assert request_.reason == "SIGTERM to rank 1: saved" and request_.exit_status == 143
    assert request_.received_signal == "SIGTERM"


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [([("", ""), ("", "stage complete")], "stage complete"), ([("", "")], "time limit of 60 s reached")],
)
def test_other_reasons_have_status_0(request_: StopRequest, reasons: list[tuple[str, str]], expected: str) -> None:
    request_.accept(reasons)
    assert request_.reason == expected and request_.exit_status == 0


def test_a_signal_that_nohup_ignores_stays_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = StopRequest(0)
    stop.handle_signals()
    signal.raise_signal(signal.SIGHUP)
    stop.restore_handlers()
    assert not stop.pending(0) and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    signal.signal(signal.SIGHUP, previous)
