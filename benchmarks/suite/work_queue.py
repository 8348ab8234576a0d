"""WorkQueue: runs scripts of the suite as child processes, at low priority and with one thread each."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
THREADS = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a queue."""
    parser.add_argument("--runs", type=Path, help="folder of run folders and logs, outside of the checkout")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names, such as 'Hopper*-ppo-*'")
    parser.add_argument("--budget-core-hours", type=float, default=float("inf"), help="start nothing after this time")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, on one core each")
    parser.add_argument("--pause-file", type=Path, help="pause while this file exists")


class WorkQueue:
    """Starts scripts until all have run or the budget is spent.

    Args:
        options: Parsed options of `add_options`.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.runs: Path = options.runs
        self.budget_core_s = 3600 * options.budget_core_hours
        self.jobs: int = options.jobs
        self.pause_file: Path | None = options.pause_file
        self.children: set[subprocess.Popen] = set()
        self.ending = False

    @property
    def spent_core_s(self) -> float:
        """CPU seconds of the scripts that have ended."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    @property
    def paused(self) -> bool:
        return self.pause_file is not None and self.pause_file.exists()

    def run_all(self, work: Sequence[tuple[str, list[str]]]) -> None:
        """Runs (name, script with its arguments) in this order, `jobs` at a time. SIGINT and SIGTERM end the queue."""
        self.runs.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.end)
        threading.Thread(target=self.watch, daemon=True).start()
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(lambda item: self.run(*item), work))

    def run(self, name: str, command: list[str]) -> None:
        """Runs one script, unless the budget is spent; a failure is printed and does not end the queue."""
        while self.paused and not self.ending:
            time.sleep(1)
        if self.ending or self.spent_core_s >= self.budget_core_s:
            return
        log = self.runs / f"{name}.log"
        paths = [str(HERE / "envs"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, **THREADS, "PYTHONPATH": os.pathsep.join(paths)}
        began = time.perf_counter()
        with log.open("w") as output:
            child = subprocess.Popen(
                ["nice", "-n", "10", sys.executable, str(HERE / command[0]), *command[1:]],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            self.children.add(child)
            with contextlib.suppress(OSError):  # Linux weighs whole sessions, and the child leads one
                Path(f"/proc/{child.pid}/autogroup").write_text("19")
            child.wait()
        self.children.discard(child)
        state = "done"
        if child.returncode:  # the log may be on another machine
            last = log.read_text(errors="replace").strip().rpartition("\n")[2][:300]
            state = f"FAILED with status {child.returncode} ({last or 'no output'}), see {log}"
        print(f"{time.strftime('%H:%M:%S')} {name}: {state}, {time.perf_counter() - began:.0f} s", flush=True)

    def watch(self) -> None:
        """Stops and continues the children as the pause file appears and disappears."""
        was_paused = False
        while not self.ending:
            if self.paused != was_paused:
                was_paused = not was_paused
                self.send(signal.SIGSTOP if was_paused else signal.SIGCONT)
                print(f"{time.strftime('%H:%M:%S')} {'paused' if was_paused else 'continued'}", flush=True)
            time.sleep(0.5)

    def send(self, number: int) -> None:
        """Sends a signal to the processes of all running scripts."""
        for child in list(self.children):
            try:
                os.killpg(child.pid, number)
            except ProcessLookupError:
                continue

    def end(self, *_: object) -> None:
        """Ends the running scripts and starts no further one."""
        self.ending = True
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
