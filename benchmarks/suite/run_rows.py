"""Runs the rows of the learning suite that have no result yet, one thread each, at low priority.

Results are `benchmarks/results/suite/ROW.json`; a row whose file exists is not run again. An interrupted row starts
from its beginning. Run folders stay outside of the checkout.

    python benchmarks/suite/run_rows.py --list
    python benchmarks/suite/run_rows.py --runs ~/suite-runs --only 'CartPole*' --budget-core-hours 2 --jobs 2
"""

from __future__ import annotations

import argparse
from fnmatch import fnmatch
from pathlib import Path

from rows import all_rows
from work_queue import WorkQueue, add_options

RESULTS = Path(__file__).parents[1] / "results" / "suite"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.add_argument("--list", action="store_true", help="list the rows with their state, and run none")
    options = parser.parse_args()
    rows = [row for row in all_rows() if any(fnmatch(row.name, pattern) for pattern in options.only)]
    missing = [row for row in rows if not (RESULTS / f"{row.name}.json").exists()]
    if options.list:
        for row in rows:
            print(f"{'missing' if row in missing else 'done   '} {row.name}")
    hours = sum(row.task.minutes for row in missing) / 60
    print(f"{len(rows)} rows, {len(missing)} without a result, about {hours:.1f} core-hours", flush=True)
    if options.list:
        return
    if options.runs is None:
        raise SystemExit("Write --runs FOLDER, outside of the checkout.")
    RESULTS.mkdir(parents=True, exist_ok=True)
    work = [
        (row.name, ["one_row.py", row.name, str(options.runs / row.name), str(RESULTS / f"{row.name}.json")])
        for row in missing
    ]
    WorkQueue(options).run_all(work)


if __name__ == "__main__":
    main()
