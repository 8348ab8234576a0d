"""Runs the rows of the learning suite that have no result yet, one thread each, at low priority.

Results are `benchmarks/results/suite/ROW.json`; a row whose file exists is not run again. An interrupted row starts
from its beginning. Run folders stay outside of the checkout.

    python benchmarks/suite/run_rows.py --list
    python benchmarks/suite/run_rows.py --runs ~/suite-runs --only 'CartPole*' --budget-core-hours 2 --jobs 2
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

from rows import Row, all_rows

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "suite"
THREADS = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")}


class Queue:
    """Starts rows as child processes until the rows or the budget end.

    Args:
        runs: Folder of run folders and logs.
        budget_core_s: Core-seconds after which no further row starts.
        pause_file: While this file exists, no row starts and running rows are stopped; None never pauses.
    """

    def __init__(self, runs: Path, budget_core_s: float, pause_file: Path | None) -> None:
        self.runs, self.budget_core_s, self.pause_file = runs, budget_core_s, pause_file
        self.children: set[subprocess.Popen] = set()
        self.ending = False

    @property
    def spent_core_s(self) -> float:
        """CPU seconds of the rows that have ended."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    @property
    def paused(self) -> bool:
        return self.pause_file is not None and self.pause_file.exists()

    def run(self, row: Row) -> None:
        """Runs one row, unless the budget is spent; a failure is printed and does not end the queue."""
        while self.paused and not self.ending:
            time.sleep(1)
        if self.ending or self.spent_core_s >= self.budget_core_s:
            return
        folder, log = self.runs / row.name, self.runs / f"{row.name}.log"
        command = ["nice", "-n", "10", sys.executable, str(HERE / "one_row.py"), row.name, str(folder)]
        command.append(str(RESULTS / f"{row.name}.json"))
        paths = [str(HERE / "envs"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, **THREADS, "PYTHONPATH": os.pathsep.join(paths)}
        began = time.perf_counter()
        with log.open("w") as output:
            child = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            self.children.add(child)
            child.wait()
        self.children.discard(child)
        seconds = time.perf_counter() - began
        state = "done" if child.returncode == 0 else f"FAILED with status {child.returncode}, see {log}"
        print(f"{time.strftime('%H:%M:%S')} {row.name}: {state}, {seconds:.0f} s", flush=True)

    def watch(self) -> None:
        """Stops and continues the children as the pause file appears and disappears."""
        was_paused = False
        while not self.ending:
            if self.paused != was_paused:
                was_paused = not was_paused
                self.signal(signal.SIGSTOP if was_paused else signal.SIGCONT)
                print(f"{time.strftime('%H:%M:%S')} {'paused' if was_paused else 'continued'}", flush=True)
            time.sleep(0.5)

    def signal(self, number: int) -> None:
        """Sends a signal to the processes of all running rows."""
        for child in list(self.children):
            try:
                os.killpg(child.pid, number)
            except ProcessLookupError:
                continue

    def end(self, *_: object) -> None:
        """Ends the running rows and starts no further one."""
        self.ending = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, help="folder of run folders and logs, outside of the checkout")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of row names, such as 'Hopper*-ppo-*'")
    parser.add_argument("--budget-core-hours", type=float, default=float("inf"), help="start no row after this time")
    parser.add_argument("--jobs", type=int, default=1, help="rows that run at the same time, on one core each")
    parser.add_argument("--pause-file", type=Path, help="pause while this file exists")
    parser.add_argument("--list", action="store_true", help="list the rows with their state, and run none")
    options = parser.parse_args()
    rows = [row for row in all_rows() if any(fnmatch(row.name, pattern) for pattern in options.only)]
    missing = [row for row in rows if not (RESULTS / f"{row.name}.json").exists()]
    hours = sum(row.task.minutes for row in missing) / 60
    if options.list:
        for row in rows:
            print(f"{'missing' if row in missing else 'done   '} {row.name}")
    print(f"{len(rows)} rows, {len(missing)} without a result, about {hours:.1f} core-hours", flush=True)
    if options.list:
        return
    if options.runs is None:
        raise SystemExit("Write --runs FOLDER, outside of the checkout.")
    for folder in (options.runs, RESULTS):
        folder.mkdir(parents=True, exist_ok=True)
    queue = Queue(options.runs, 3600 * options.budget_core_hours, options.pause_file)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, queue.end)
    threading.Thread(target=queue.watch, daemon=True).start()
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(queue.run, missing))


if __name__ == "__main__":
    main()
