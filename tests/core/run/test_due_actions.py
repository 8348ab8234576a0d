"""Due actions: what happens after an iteration, also at the end of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from powerband.core.config import RunConfig
from powerband.core.run.due_actions import DueActions


@pytest.fixture
def due() -> DueActions:
    """The due actions of a run on one rank, which evaluates every 100 environment steps."""
    ranks: Any = SimpleNamespace(gather=lambda value: [value])
    journal: Any = SimpleNamespace(wants_line=lambda: False, clock=None)
    guard: Any = SimpleNamespace(fault=None)
    actions = DueActions(RunConfig(eval_interval=100, save_interval=100), ranks, journal, guard)
    actions._agreement = SimpleNamespace(due=lambda: True, any_rank_wants=lambda *wants: list(map(bool, wants)))
    return actions


def test_a_signal_saves_before_an_evaluation_that_stays_due_for_the_resumed_run(due: DueActions) -> None:
    assert due.after_iteration(100, 1.0, 1.0).evaluate and not due.after_iteration(150, 1.5, 1.5).evaluate
    due.stop_request.received_signal = "SIGTERM"
    last = due.after_iteration(200, 2.0, 2.0)
    assert (last.end, last.interrupted, last.evaluate, last.save) == (True, True, False, True)
    due.stop_request.received_signal = due.stop_request.reason = ""
    assert due.after_iteration(210, 2.1, 2.1).evaluate


def test_a_run_that_ends_by_its_time_limit_still_evaluates(due: DueActions) -> None:
    due.stop_request.time_limit_s = 2.0
    last = due.after_iteration(200, 2.0, 2.0)
    assert (last.end, last.interrupted, last.evaluate) == (True, False, True)


def test_ranks_agree_when_a_signal_arrives_after_they_have_exchanged_their_reasons(due: DueActions) -> None:
    due.stop_request.time_limit_s = 2.0

    def gather(value: tuple[str, str]) -> list[tuple[str, str]]:
        due.stop_request.received_signal = "SIGTERM"
        return [value, ("", "")]

    due.ranks = SimpleNamespace(gather=gather)
    last = due.after_iteration(200, 2.0, 2.0)
    assert (last.interrupted, last.evaluate) == (False, True), "the other rank evaluates"
