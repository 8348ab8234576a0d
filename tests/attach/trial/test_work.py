"""Work: runs are compared over the same counts, and over whole cycles if updates come in bursts."""

from __future__ import annotations

from typing import Any

import pytest

from powerband.attach.processes.records import Record
from powerband.attach.trial.work import Work, choose_work, leading_marks, rate_of, time_at


def record(marks: list[tuple[int, int, float]], pid: int = 1) -> Record:
    """A record with marks of (updates, environment steps, seconds)."""
    line: dict[str, Any] = {"kind": "times", "marks": [[u, e, int(s * 1e9)] for u, e, s in marks]}
    return Record(pid, 0, 0, {}, [line])


STEADY = [(10 * i, 0, 0.1 * i) for i in range(1, 200)]
BURSTS = [
    (u, 100 * (c + 1), 2.0 * c + 1.5 + 0.05 * k) for c in range(9) for k, u in enumerate(range(10 * c, 10 * c + 11))
]
"""Cycles of two seconds: a rollout of 1.5 s, and ten updates in the last half second."""


def test_a_steady_loop_is_timed_after_its_warm_up() -> None:
    work = choose_work([record(STEADY)], 1.0, 4.0)
    assert work is not None and work.unit == "updates" and not work.bursts
    assert 0.1 * work.first / 10 >= 2.5 and work.seconds == pytest.approx(4.0, abs=0.11)
    assert rate_of(leading_marks([record(STEADY)], "updates"), work) == pytest.approx(100)


def test_bursts_are_timed_in_whole_cycles() -> None:
    work = choose_work([record(BURSTS)], 0.5, 4.5)
    assert work is not None and work.bursts and work.seconds == pytest.approx(6.0)
    assert (work.first % 10, work.last % 10) == (0, 0)


def test_a_loop_without_updates_counts_environment_steps() -> None:
    work = choose_work([record([(0, 7 * i, 0.1 * i) for i in range(1, 90)])], 0.0, 2.0)
    assert work is not None and work.unit == "env_steps"


def test_a_run_that_is_too_short_has_no_work() -> None:
    assert choose_work([record(STEADY[:5])], 1.0, 4.0) is None
    assert choose_work([], 1.0, 4.0) is None


def test_times_between_marks_and_of_partial_runs() -> None:
    marks = [(10, 1.0), (20, 2.0), (20, 3.0), (40, 5.0)]
    assert time_at(marks, 15) == 1.5 and time_at(marks, 20) == 2.0 and time_at(marks, 30) == 4.0
    assert time_at(marks, 41) is None
    work = Work("updates", 10, 70, 6.0)
    assert rate_of(marks, work) == pytest.approx(30 / 4)  # half of the work
    assert rate_of(marks, Work("updates", 10, 400, 6.0)) is None


def test_the_process_with_the_highest_count_leads() -> None:
    marks = leading_marks([record([(1, 0, 1.0)], 1), record([(5, 0, 1.0)], 2)], "updates")
    assert marks == [(5, 1.0)]
