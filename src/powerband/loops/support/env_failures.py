"""Reports failures of simulators that a run has repaired: a message on every rank, and a count over all ranks."""

from __future__ import annotations

import sys

from powerband.core.run.run import Run

METRIC = "charts/env_failures"
"""Figure of a log line: repaired failures of all ranks since the process began; absent without one."""


def report_env_failure(run: Run, failure: object) -> None:
    """Prints and counts a failure of a simulator of this rank, whose text is ``str(failure)``.

    Ranks other than rank 0 have no log and print to stderr.
    """
    run.metrics.add_count(METRIC)
    if run.ranks.leads:
        run.console.note(str(failure))
    else:
        print(f"powerband: rank {run.ranks.rank}: {failure}", file=sys.stderr, flush=True)
