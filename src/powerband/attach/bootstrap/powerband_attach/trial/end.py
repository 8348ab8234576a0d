"""End: records the progress of a trial, and ends the process at a count of updates or environment steps."""

from __future__ import annotations

import os
import sys
from time import perf_counter_ns

from powerband_attach import record
from powerband_attach.profile.clock import clock
from powerband_attach.safely import safely
from powerband_attach.trial import settings


def install() -> None:
    """Starts to record progress, and looks for the end at each mark."""
    clock.marks = []
    unit, until = settings.get("unit", "updates"), int(settings.get("until", 0))
    if until:

        def end_if_done() -> None:
            if getattr(clock, unit) >= until:
                finish()

        clock.after_mark = end_if_done


def finish() -> None:
    """Ends this process, as a script that is complete. The tool ends other processes of the run."""
    if clock.marks is not None:
        clock.marks.append((clock.updates, clock.env_steps, perf_counter_ns()))
    record.write("finished")
    for stream in (sys.stdout, sys.stderr):
        safely(stream.flush)()
    os._exit(0)
