"""Checkpoints by the clock: the first after half an interval, and saving takes at most 1 % of the time."""

from __future__ import annotations

from pathlib import Path

import pytest

import runs
from powerband.core.run.checkpoints import save_timer
from powerband.core.run.checkpoints.save_timer import SaveTimer


class Clock:
    """A clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(save_timer.time, "perf_counter", lambda: self.now)

    def due_between(self, timer: SaveTimer, before: float, at: float) -> bool:
        self.now = before
        early = timer.due()
        self.now = at
        return not early and timer.due()


def test_the_first_checkpoint_is_due_after_half_an_interval_and_then_after_whole_ones(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    timer = SaveTimer(120)
    assert clock.due_between(timer, 59.9, 60)
    with timer:
        clock.now += 0.5
    assert clock.due_between(timer, 60.5 + 119.9, 60.5 + 120)


def test_slow_checkpoints_are_rarer(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    timer = SaveTimer(120)
    with timer:
        clock.now += 4
    assert clock.due_between(timer, 4 + 395, 4 + 396.1)


def test_an_interval_of_zero_makes_no_checkpoint_due(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    timer = SaveTimer(0)
    clock.now = 1e9
    assert not timer.due()


def test_a_run_saves_by_the_clock_alone(tmp_path: Path) -> None:
    arguments = ("env_steps=1000000", "time_limit_s=2", "save_interval_s=0.2", "keep_checkpoints=100")
    run = runs.train("cartpole", tmp_path / "run", "num_workers=0", *arguments)
    steps = sorted(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit())
    assert len(steps) >= 2, "a checkpoint at the end, and at least one before it"
    assert steps[-1] == runs.metrics(run)[-1]["env_steps"]
