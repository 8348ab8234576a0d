"""Facts of a process: counts and checksums of what it computes, and the end of the run at a given count or time.

Only a process that has made optimiser steps, or the first one, ends itself. A simulator worker goes on: without it, the
process that trains would end with an error.

The record gets the facts when a count reaches a power of two, so that a killed process leaves some, and at the end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from powerband_attach import process, record
from powerband_attach.audit import settings
from powerband_attach.safely import safely

MOST_EVENTS = 20000
LEAST_UPDATES = 8
"""Optimiser steps of a run that its window may end."""
counts: dict[str, int] = {}
"""Name -> number, such as ``updates``, ``env_steps``, ``backward``, ``threads``."""
series: dict[str, list[Any]] = {}
"""Name -> values in order, such as the losses."""
values: dict[str, Any] = {}
"""Name -> last value, such as ``library torch.set_num_threads``."""
before_write: list[Callable[[], Any]] = []
_events: list[list[Any]] = []
_began = time.monotonic()
_first_update = [0.0]
_first_step = [0.0]
FIRST = "POWERBAND_AUDIT_FIRST"
"""Environment variable with the process id and the rank of the first process of a run, or of a rank."""
_is_first = [True]


def install() -> None:
    """Writes the facts at the end of the process."""
    pid, rank = str(os.getpid()), os.environ.get("RANK", "")
    first_pid, _, first_rank = os.environ.get(FIRST, "").partition(" ")
    # A process stays the first one through `os.exec`. A launcher such as torchrun has no rank.
    _is_first[0] = first_pid in ("", pid) or first_rank != rank
    if _is_first[0]:
        os.environ[FIRST] = pid + " " + rank
    process.at_end.append(write)
    process.after_fork_in_child.append(_forget)
    original = threading.Thread.start

    def start(self: threading.Thread) -> None:
        counts["threads"] = counts.get("threads", 0) + 1
        original(self)

    threading.Thread.start = start  # type: ignore[method-assign]


def event(letter: str) -> None:
    """Notes an event of the training loop: ``e`` an environment step, ``u`` an optimiser step.

    Equal events in sequence are one entry with their number.
    """
    if _events and _events[-1][0] == letter:
        _events[-1][1] += 1
    elif len(_events) < MOST_EVENTS:
        _events.append([letter, 1])


def count(name: str, n: int = 1) -> int:
    """Adds `n` to a count. Returns the new count."""
    value = counts[name] = counts.get(name, 0) + n
    if value & (value - 1) == 0:
        write()
    return value


def write() -> None:
    """Writes the facts to the record."""
    for callback in before_write:
        safely(callback)()
    record.write(
        "facts",
        counts=dict(counts),
        series=dict(series),
        values=dict(values),
        events=_events,
        seconds=time.monotonic() - _began,
    )


def stop_if_due() -> None:
    """Ends the run if it has reached its limit. Other processes of the run are ended by the tool.

    A run without counts ends `window_s` after its first optimiser step, if it has made `LEAST_UPDATES`. Without
    optimiser steps, it ends twice that time after its first environment step.
    """
    now, updates, steps = time.monotonic(), counts.get("updates", 0), counts.get("env_steps", 0)
    if not (updates or _is_first[0]):
        return
    _first_update[0] = _first_update[0] or (now if updates else 0.0)
    _first_step[0] = _first_step[0] or (now if steps else 0.0)
    window, limit = float(settings.get("window_s", 0)), int(settings.get("updates", 0))
    due = bool(limit and updates >= limit) or bool(settings.get("env_steps", 0) and steps >= settings.get("env_steps"))
    if window and not limit:
        due = due or bool(updates >= LEAST_UPDATES and now - _first_update[0] > window)
        due = due or bool(not updates and _first_step[0] and now - _first_step[0] > 2 * window)
    if due or now - _began > float(settings.get("most_s", 1e9)):
        write()
        record.write("stopped", updates=updates, env_steps=steps)
        for stream in (sys.stdout, sys.stderr):
            safely(stream.flush)()
        os._exit(0)


def _forget() -> None:
    counts.clear()
    series.clear()
    values.clear()
    _events.clear()
    _is_first[0] = False
    _first_update[0] = _first_step[0] = 0.0
