"""Seconds from nothing to an evaluated policy with a video: ``variant=smoke`` of every recipe and stage, clean cache.

Run ``python benchmarks/first_runs.py [NAME ...]``. Each row starts with empty caches (compiled kernels, episodes,
meshes), trains, evaluates with the defaults of ``powerband eval``, and looks for the video. Stages that need an earlier
one belong to its row, which runs them in order. The table is printed, and written to ``first_runs.json`` with --out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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
        TRAIN.format("sketchnav algo=diffusion demos_dir={{project}}"),
        "eval {run}",
    ],
    "metaworld expert": [TRAIN.format("metaworld project={{project}}"), "eval {run}"],
    "metaworld pipeline": [
        TRAIN.format("metaworld pipeline project={{project}}"),
        "eval {project}/runs/student-reach",
    ],
    "libero": [TRAIN.format("libero"), "eval {run}"],
    "libero pipeline": [TRAIN.format("libero pipeline project={{project}}")],
}


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
        row: dict = {"row": name, "cores": cores, "seconds": [], "cpu_s": [], "load": os.getloadavg()[0]}
        for text in ROWS[name]:
            command = text.format(run=root / "run", project=root / "project").split()
            began, computed = time.perf_counter(), _children_s()
            with (root / "output.txt").open("ab") as output:
                status = subprocess.run(
                    [sys.executable, "-m", "powerband", *command], env=environment, stdout=output, stderr=output
                ).returncode
            row["seconds"].append(round(time.perf_counter() - began, 1))
            row["cpu_s"].append(round(_children_s() - computed, 1))
            if status:
                row["error"] = (root / "output.txt").read_text(errors="replace")[-800:]
                break
        row["total_s"] = round(sum(row["seconds"]), 1)
        row["videos"] = sum(1 for path in root.rglob("videos/*") if path.suffix in (".mp4", ".gif"))
    return row


def _children_s() -> float:
    """CPU seconds of all ended child processes, which other work on the machine hardly changes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measures the named rows, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"rows: {', '.join(ROWS)}")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    rows = []
    for name in options.names or ROWS:
        rows.append(measure(name, len(os.sched_getaffinity(0))))
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            Path(options.out).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
