"""Work: the part of a script that all runs repeat, as counts of its own iterations, and the time of a run for it.

The runs are compared over the same counts and not over the same seconds, so rollouts, evaluations and checkpoints
between the two counts happen in all of them. If a script updates in bursts, the part consists of whole cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerband.attach.processes.records import Record

Marks = Sequence[tuple[int, float]]
"""(count, time in seconds) of a process, in order."""
WARM_UP_S = 1.5
"""Seconds after the start of the window before the part begins."""
PAUSE_S = 0.5
"""Pause of the updates that separates two bursts."""
UNITS = ("updates", "env_steps")


@dataclass(frozen=True)
class Work:
    """The part of the script that is timed.

    Attributes:
        unit: ``updates`` (optimiser steps) or ``env_steps``.
        first, last: Counts at which it begins and ends.
        seconds: Time that the first run needed for it.
        bursts: Whether it consists of whole cycles with a burst of updates each.
    """

    unit: str
    first: int
    last: int
    seconds: float
    bursts: bool = False


def marks_of(record: Record, unit: str) -> list[tuple[int, float]]:
    """Returns the marks of a process."""
    column = UNITS.index(unit)
    found = [(mark[column], mark[2] * 1e-9) for line in record.of_kind("times") for mark in line.get("marks", [])]
    return sorted(set(found), key=lambda mark: mark[1])


def leading_marks(records: Sequence[Record], unit: str) -> list[tuple[int, float]]:
    """Returns the marks of the process with the highest count."""
    every = [marks_of(record, unit) for record in records]
    return max(every, key=lambda marks: marks[-1][0] if marks else 0, default=[])


def choose_work(records: Sequence[Record], start_s: float, seconds: float) -> Work | None:
    """Chooses the part of about `seconds` after the warm-up of the first run; None if the run was too short.

    Args:
        records: Records of the first run.
        start_s: Start of its window, on the clock of `time.perf_counter`.
        seconds: Wanted length.
    """
    for unit in UNITS:
        marks = leading_marks(records, unit)
        later = [mark for mark in marks if mark[1] >= start_s + WARM_UP_S]
        advances = [b for a, b in zip(later, later[1:], strict=False) if b[0] > a[0]]
        if len(advances) < 3:
            continue
        starts = _burst_starts(later)
        if len(starts) >= 2:
            end = next((mark for mark in starts[1:] if mark[1] - starts[0][1] >= seconds), starts[-1])
            return Work(unit, starts[0][0], end[0], end[1] - starts[0][1], True)
        first = later[0]
        end = next((mark for mark in later if mark[1] - first[1] >= seconds), later[-1])
        if end[0] > first[0]:
            return Work(unit, first[0], end[0], end[1] - first[1])
    return None


def _burst_starts(marks: Marks) -> list[tuple[int, float]]:
    """Returns the last mark before each pause: the count at which a cycle begins."""
    advances = [b for a, b in zip(marks, marks[1:], strict=False) if b[0] > a[0]]
    pauses = [a for a, b in zip(advances, advances[1:], strict=False) if b[1] - a[1] >= PAUSE_S]
    # With slow iterations every update is a pause, which is no burst.
    return pauses if len(pauses) < 0.5 * len(advances) else []


def time_at(marks: Marks, count: int) -> float | None:
    """Returns the time at which a count was reached, between two marks in proportion; None if it was not reached."""
    before: tuple[int, float] | None = None
    for mark in marks:
        if mark[0] >= count:
            if before is None or mark[0] == count or mark[0] == before[0]:
                return mark[1]
            return before[1] + (count - before[0]) / (mark[0] - before[0]) * (mark[1] - before[1])
        before = mark
    return None


def rate_of(marks: Marks, work: Work) -> float | None:
    """Returns the iterations per second of a run over the part, or over what it has reached of it.

    None if it has reached less than a third.
    """
    begin = time_at(marks, work.first)
    last = min(work.last, marks[-1][0] if marks else 0)
    end = time_at(marks, last)
    if begin is None or end is None or end <= begin or last - work.first < (work.last - work.first) / 3:
        return None
    return (last - work.first) / (end - begin)
