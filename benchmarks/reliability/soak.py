"""Soak: trains six recipes under random faults, resumes after each, and compares the end with an undisturbed run.

Faults: kill -9 at a random instant or while a checkpoint is being saved, SIGTERM, a damaged newest checkpoint, a rank
or a simulator that stops, a lost rank of two, a full disk, and an environment that gives NaN. All of these runs resume
exactly on a CPU with one thread, so a disturbed run must end with the same bits as the undisturbed one. Each run is
added to the JSON file when it has ended, and a second start with the same file continues after the last one.

    python benchmarks/reliability/soak.py --faults 500 --every 60 --length 40 --save-interval-s 20 --json soak.json
    python benchmarks/reliability/soak.py --faults 200 --kinds kill kill kill kill "kill while saving" \
        --json benchmarks/results/reliability/soak_kills.json

A full disk needs the right to mount a small file system in memory, and is left out without it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tests")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])

from powerband.core.machine.device import host_facts  # noqa: E402
from recipes.libero.demonstrations import record  # noqa: E402
from soak_environment import FILE  # noqa: E402
from soak_faults import FAULTS, applies  # noqa: E402
from soak_runs import (  # noqa: E402
    RUNS,
    Child,
    command_line,
    differences,
    final_state,
    newest,
    resume_line,
    saved_at,
)

DISK_MIB = 1024
"""Size of the small disk. Three checkpoints of the longest run and a new one take 260 MiB."""
TRACEBACK = r'Traceback .*\n(?!  File "<string>", line \d+, in <module>\n(?:EOFError|BrokenPipeError))'
"""A traceback, but not that of the version check of glfw, a process that talks to the killed one."""
WAIT_S = 600.0


@dataclass(frozen=True)
class Soak:
    """Settings of a soak.

    Attributes:
        folder: Folder of all runs.
        disk: Folder of disturbed runs, on a small disk if there is one.
        kinds: Faults of each run, in a random order; a fault may stand there several times.
        every_s: Mean seconds between two faults; 0 spreads them over the seconds of the undisturbed run.
        length: Length of a run in units of that in `RUNS`.
        words: Words of the command line of every run.
        seed: Seed of all random choices.
    """

    folder: Path
    disk: Path
    kinds: tuple[str, ...]
    every_s: float
    length: float
    words: tuple[str, ...]
    seed: int

    @property
    def small_disk(self) -> bool:
        """True if `disk` is a disk of its own."""
        return os.path.ismount(self.disk)

    def calm_run(self, name: str) -> tuple[dict[str, Any], float]:
        """Trains without a fault. Returns the state at the end and the seconds that it took."""
        run, log = self.folder / f"{name}-calm", self.folder / f"{name}.log"
        seconds_file = self.folder / f"{name}-calm.seconds"
        if not seconds_file.exists():
            shutil.rmtree(run, ignore_errors=True)
            child = Child(command_line(name, run, self.folder / "data", self.length, *self.words), log)
            assert child.wait(max(WAIT_S, 60 * self.length)) == 0, f"{name}: see {log}"
            seconds_file.write_text(str(time.monotonic() - child.began))
        return final_state(run), float(seconds_file.read_text())

    def disturbed_run(self, name: str, number: int, seconds: float) -> tuple[dict[str, Any], Path]:
        """Trains under one fault after the other to the end. Returns the row of the run and its folder."""
        rng = random.Random(f"{self.seed} {name} {number}")
        run, log = self.disk / f"{name}-{number}", self.folder / f"{name}.log"
        shutil.rmtree(run, ignore_errors=True)  # of an earlier start of this program, which was interrupted
        faults: list[dict[str, Any]] = []
        problems: list[str] = []
        restarts = 0
        new = command_line(name, run, self.folder / "data", self.length, *self.words)
        log_start = log.stat().st_size
        deck = [kind for kind in self.kinds if applies(kind, name, self.small_disk)]
        rng.shuffle(deck)
        child = Child(new, log)
        while deck:
            mean_s = self.every_s or seconds / 3
            before = newest(run)
            if not wait_for(deck[0], child, run, rng.uniform(0, 2 * mean_s), rng):
                break
            alive_s, instant = time.monotonic() - child.began, time.time()
            problem = FAULTS[deck[0]](child, run, rng)
            inside = any((run / "checkpoints").glob(".saving-*"))
            fault = {"kind": deck[0], "alive_s": round(alive_s, 2), "status": child.status, "inside_a_save": inside}
            if deck[0] != "kill while saving" or inside:
                deck.pop(0)
            else:
                fault["kind"] = "kill"
            after, saved = newest(run), saved_at(run)
            if problem or after < before and fault["kind"] != "damaged checkpoint":
                problems.append(f"{fault['kind']}: {problem or f'checkpoint {before} is gone'}")
            if saved is not None:
                fault["lost_s"] = round(max(0.0, instant - max(saved, instant - alive_s)), 2)
                child = Child(resume_line(name, run), log)
            else:  # nothing to continue from
                restarts += 1
                shutil.rmtree(run, ignore_errors=True)
                child = Child(new, log)
            faults.append(fault)
        status = child.wait(WAIT_S + 4 * seconds)  # other work may share the core
        if status:
            problems.append(f"the end: status {status}: {child.printed()[-300:]!r}")
        row = {"name": name, "number": number, "faults": faults, "started_again": restarts}
        with log.open("rb") as file:
            file.seek(log_start)
            row["tracebacks"] = len(re.findall(TRACEBACK, file.read().decode(errors="replace")))
        different = differences(final_state(self.folder / f"{name}-calm"), final_state(run)) if not status else None
        return {**row, "different": different, "problems": problems}, run


def wait_for(fault: str, child: Child, run: Path, delay_s: float, rng: random.Random) -> bool:
    """Waits for the instant of a fault. Returns False if the process has ended before."""
    deadline = child.began + WAIT_S
    while time.monotonic() < deadline:
        if child.ended():
            return False
        due = time.monotonic() - child.began >= delay_s
        if due and fault != "kill while saving":
            return True
        if due and any((run / "checkpoints").glob(".saving-*")):
            time.sleep(rng.uniform(0, 0.003))
            return True
        time.sleep(0.0005)
    return False


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of all runs."""
    faults = [fault for row in rows for fault in row["faults"]]
    lost = sorted(fault["lost_s"] for fault in faults if "lost_s" in fault)
    problems = [f"{row['name']} {row['number']}: {text}" for row in rows for text in row["problems"]]
    for row in rows:
        if row["different"]:
            problems.append(f"{row['name']} {row['number']}: other bits in {', '.join(map(str, row['different'][:3]))}")
        if row["tracebacks"]:
            problems.append(f"{row['name']} {row['number']}: {row['tracebacks']} tracebacks")
    return {
        "runs": len(rows),
        "runs with the same bits": sum(row["different"] == [] for row in rows),
        "faults": dict(Counter(fault["kind"] for fault in faults)),
        "faults inside a save": sum(fault["inside_a_save"] for fault in faults),
        "started again without a checkpoint": sum(row["started_again"] for row in rows),
        "median and largest loss in seconds": [lost[len(lost) // 2], lost[-1]] if lost else None,
        "tracebacks": sum(row["tracebacks"] for row in rows),
        "problems": problems,
    }


def main() -> int:
    """Returns the exit status: 1 if a run has a problem."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", type=int, default=60, help="faults over all recipes")
    parser.add_argument("--only", nargs="+", default=list(RUNS), choices=list(RUNS), help="runs")
    parser.add_argument("--kinds", nargs="+", default=list(FAULTS), choices=list(FAULTS), help="faults of each run")
    parser.add_argument("--every", type=float, default=0.0, help="mean seconds between two faults; 0: within one run")
    parser.add_argument("--length", type=float, default=1.0, help="length of each run, in units of some seconds")
    parser.add_argument("--save-interval-s", type=float, default=1.0, help="the option of each run")
    parser.add_argument("--stall-s", type=float, default=10.0, help="the option of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="folder of the runs; a temporary one by default")
    parser.add_argument("--json", type=Path, help="file for the results, which a second start continues")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="powerband-soak-"))
    disk = folder / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    if not (folder / "data").exists():
        record(folder / "data")
    os.environ[FILE] = str(folder / "nan")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "powerband-soak", str(disk)]
    mounted = "full disk" in options.kinds and subprocess.run(mount, stderr=subprocess.DEVNULL).returncode == 0
    words = (f"save_interval_s={options.save_interval_s:g}", f"stall_s={options.stall_s:g}")
    soak = Soak(folder, disk, tuple(options.kinds), options.every, options.length, words, options.seed)
    rows = json.loads(options.json.read_text())["rows"] if options.json and options.json.exists() else []
    try:
        run_all(soak, options, rows)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=False)
    return int(bool(summary(rows)["problems"]))


def run_all(soak: Soak, options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Disturbs the runs in turn until there have been enough faults; adds to `rows` and to the JSON file."""
    began, first = time.monotonic(), sum(len(row["faults"]) for row in rows)
    calm: dict[str, float] = {}
    while (done := sum(len(row["faults"]) for row in rows)) < options.faults:
        name = min(options.only, key=lambda each: sum(len(row["faults"]) for row in rows if row["name"] == each))
        if name not in calm:
            calm[name] = soak.calm_run(name)[1]
        row, run = soak.disturbed_run(name, sum(row["name"] == name for row in rows), calm[name])
        rows.append(row)
        if not row["faults"]:  # the machine has become faster since the undisturbed run
            calm[name] /= 2
        good = row["different"] == [] and not row["problems"] and not row["tracebacks"]
        if not good:
            shutil.copytree(run, soak.folder / f"failed-{run.name}", symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(run, ignore_errors=True)
        now, seconds = done + len(row["faults"]), time.monotonic() - began
        left_s = seconds / max(1, now - first) * max(0, options.faults - now)
        print(
            f"{now}/{options.faults} faults, {seconds:.0f} s, {left_s:.0f} s left; {name} {row['number']}: "
            f"{'same bits' if good else json.dumps(row)}",
            flush=True,
        )
        if options.json:
            result = {"host": host_facts(), "arguments": sys.argv[1:], "summary": summary(rows), "rows": rows}
            new = options.json.with_suffix(".new")
            new.write_text(json.dumps(result) + "\n")
            new.replace(options.json)
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    sys.exit(main())
