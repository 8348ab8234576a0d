"""End: records the progress of a trial, and ends the process at a count of updates or environment steps."""

from __future__ import annotations

import os
import sys

from powerband_attach import record
from powerband_attach.profile.clock import Clock, clock
from powerband_attach.safely import safely
from powerband_attach.trial import settings


def install() -> None:
    """Starts to record progress, and looks for the end at each mark."""
    clock.marks = []
    unit, until = settings.get("unit", "updates"), int(settings.get("until", 0))
    if until:
        original = Clock.mark

        def mark(self: Clock, marks: list[tuple[int, int, int]]) -> None:
            original(self, marks)
            if getattr(self, unit) >= until:
                finish()

        Clock.mark = mark  # type: ignore[method-assign]


def finish() -> None:
    """Ends this process, as a script that is complete. The tool ends other processes of the run."""
    if clock.marks is not None:
        clock.marks.append((clock.updates, clock.env_steps, clock.since))
    record.write("finished")
    for stream in (sys.stdout, sys.stderr):
        safely(stream.flush)()
    os._exit(0)
