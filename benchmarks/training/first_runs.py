"""Seconds from nothing to an evaluated policy with a video: ``variant=smoke`` of every recipe and stage, clean cache.

    python benchmarks/training/first_runs.py [NAME ...]

Each row starts with empty caches (compiled kernels, episodes, meshes), trains, evaluates with the defaults of
``powerband eval``, and looks for the video. Stages that need an earlier one belong to its row, which runs them in
order; what several rows need is prepared without a clock. The rows are printed, and written with --out, where rows of
the same name are replaced.

The limit is two minutes of wall time on two idle cores. ``load`` is the load of the machine before each command: with
a load above 1, only the CPU seconds count.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAIN = "train {} variant=smoke run_dir={{run}}"
ROWS: dict[str, list[str]] = {
    "gym": [TRAIN.format("gym"), "eval {run}"],
    "snakes": [TRAIN.format("snakes"), "eval {run}"],
    "uav": [TRAIN.format("uav"), "eval {run}"],
    "sketchnav": [TRAIN.format("sketchnav"), "eval {run}"],
    "sketchnav episodes": [TRAIN.format("sketchnav episodes")],
    "sketchnav demos, diffusion": [
        "train sketchnav demos variant=smoke run_dir={run}-demos demos_dir={project}",
        TRAIN.format("sketchnav algo=diffusion demos_dir={project}"),
        "eval {run}",
    ],
    "metaworld expert": [TRAIN.format("metaworld project={project}"), "eval {run}"],
    "metaworld pipeline": [
        TRAIN.format("metaworld pipeline project={project}"),
        "eval {project}/runs/student-reach",
    ],
    "metaworld student_finetune": [TRAIN.format("metaworld student_finetune project={project}")],
    "libero": [TRAIN.format("libero"), "eval {run}"],
    "libero export": [TRAIN.format("libero export demos_dir={project}")],
    "libero pipeline": [TRAIN.format("libero pipeline project={project}")],
}
PREPARED: dict[str, list[str]] = {
    "metaworld student_finetune": ["train metaworld pipeline variant=smoke project={project} run_dir={run}-first"],
    "libero export": ["train libero demos variant=smoke demos_dir={project} run_dir={run}-first"],
}
"""Row -> commands before it that are not measured; they also fill the caches."""
TIMEOUT_S = 1800.0
"""Seconds after which a command is ended and its row has an error."""
REPOSITORY = Path(__file__).resolve().parents[2]


def measure(name: str, cores: int) -> dict:
    """Runs the commands of one row in an empty folder with empty caches; returns seconds per command and videos."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(root / "cache"),
            "NUMBA_CACHE_DIR": str(root / "numba"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        row: dict = {"row": name, "cores": cores, "seconds": [], "cpu_s": [], "load": []}
        prepared = PREPARED.get(name, [])
        for number, text in enumerate([*prepared, *ROWS[name]]):
            command = text.format(run=root / "run", project=root / "project").split()
            load, began, computed = os.getloadavg()[0], time.perf_counter(), _children_s()
            status = _run([sys.executable, "-m", "powerband", *command], environment, root / "output.txt")
            if number >= len(prepared):
                row["load"].append(round(load, 1))
                row["seconds"].append(round(time.perf_counter() - began, 1))
                row["cpu_s"].append(round(_children_s() - computed, 1))
            if status:
                tail = (root / "output.txt").read_text(errors="replace")[-800:]
                row["error"] = f"status {status}: " + tail.replace(f"{root}/", "").replace(f"{REPOSITORY}/", "")
                break
        row["total_s"], row["total_cpu_s"] = round(sum(row["seconds"]), 1), round(sum(row["cpu_s"]), 1)
        row["videos"] = sum(1 for path in root.rglob("videos/*") if path.suffix in (".mp4", ".gif"))
    return row


def _run(command: list[str], environment: dict[str, str], output: Path) -> int:
    """Runs a command in a process group of its own, which is killed after `TIMEOUT_S`; returns its status."""
    with output.open("ab") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
        try:
            return process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            file.write(f"ended after {TIMEOUT_S:g} s\n".encode())
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _children_s() -> float:
    """CPU seconds of all ended child processes, which other work on the machine hardly changes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measures the named rows, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"rows: {', '.join(ROWS)}")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ROWS):
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}. Rows: {', '.join(ROWS)}")
    out = Path(options.out) if options.out else None
    rows = {row["row"]: row for row in json.loads(out.read_text())} if out and out.exists() else {}
    for name in options.names or ROWS:
        rows[name] = measure(name, len(os.sched_getaffinity(0)))
        print(json.dumps(rows[name]), flush=True)
        if out:
            out.write_text(json.dumps([rows[each] for each in ROWS if each in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
