"""Schedules: exact update counts, resume in between, and periodic triggers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.core.schedule import Every, UpdateSchedule


@given(
    interval=st.integers(1, 50),
    updates=st.one_of(st.none(), st.integers(0, 30)),
    learning_starts=st.integers(0, 200),
    parts=st.lists(st.integers(0, 70), max_size=30),
    resume_at=st.integers(0, 30),
)
def test_due_updates_are_exact_for_any_sizes_of_additions(interval, updates, learning_starts, parts, resume_at):
    schedule = UpdateSchedule(interval, updates, learning_starts)
    due = 0
    for index, part in enumerate(parts):
        if index == resume_at:
            state, schedule = schedule.state_dict(), UpdateSchedule(interval, updates, learning_starts)
            schedule.load_state_dict(state)
        due += schedule.due(part)
    each = interval if updates is None else updates
    assert due == max(0, sum(parts) - learning_starts) // interval * each


@pytest.mark.parametrize("arguments", [{"update_interval": 0}, {"update_interval": 1, "learning_starts": -1}])
def test_invalid_schedules_are_refused(arguments):
    with pytest.raises(ValueError, match="below"):
        UpdateSchedule(**arguments)


def test_the_default_ratio_is_one_for_every_interval():
    assert {UpdateSchedule(k).ratio for k in (1, 5, 10, 20)} == {1.0}


@given(interval=st.integers(1, 20), steps=st.lists(st.integers(1, 50), max_size=30))
def test_every_is_ready_once_after_each_multiple(interval, steps):
    every, counter = Every(interval), 0
    for step in steps:
        crossed = (counter + step) // interval > counter // interval
        counter += step
        assert every.ready(counter) == crossed
        assert not every.ready(counter)


def test_every_zero_is_never_ready():
    assert not any(Every(0).ready(counter) for counter in range(10))
