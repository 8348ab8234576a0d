"""False alarms: trains every recipe with the default ``stall_s``, and counts reports of a stall, which must be none.

Each run compiles, evaluates at an interval, and saves every minute, so that the slow phases occur too. All runs start
at once and compete for the cores of this machine, which makes every phase slower still.

    python benchmarks/reliability/false_alarms.py --seconds 1200 --json benchmarks/results/reliability/false_alarms.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from powerband.core.machine.device import host_facts

COMMON = "gpus=none threads=1 tensorboard=false save_interval_s=60 eval_process=off"
RUNS = {
    "gym": "gym env_id=HalfCheetah-v5 algo=sac env_steps=1e9 eval_interval=3000 eval_episodes=20",
    "snakes": "snakes algo=ddpg env_steps=1e9 eval_interval=200000",
    "uav": "uav variant=fast time_limit_s=0 env_steps=1e9 eval_interval=100000",
    "metaworld": "metaworld variant=cpu project={folder} env_steps=1e9 eval_interval=10000",
    "sketchnav": "sketchnav variant=small env_steps=1e9 eval_interval=100000",
    "libero": "libero variant=smoke updates=1000000 eval_interval=2000",
}
ALARMS = ("has made no progress for", "have waited for other ranks for")


def start(name: str, folder: Path) -> subprocess.Popen:
    """Starts a run with empty caches in a folder of its own."""
    folder.mkdir()
    words = [*RUNS[name].format(folder=folder).split(), *COMMON.split(), f"run_dir={folder / 'run'}"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "NUMBA_CACHE_DIR": str(folder / "numba")}
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "powerband", "train", *words],
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
        )


def facts(name: str, folder: Path, seconds: float) -> dict:
    """What a run has done, and every line with a report of a stall."""
    printed = (folder / "output").read_text(errors="replace").splitlines()
    path = folder / "run" / "metrics.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return {
        "run": name,
        "seconds": round(seconds),
        "env_steps": max((line["env_steps"] for line in lines), default=0),
        "evaluations": sum(any(tag.startswith("eval/") for tag in line) for line in lines),
        "checkpoints": (folder / "run" / "checkpoints" / "last").exists(),
        "alarms": [line for line in printed if any(text in line for text in ALARMS)],
        "last_lines": printed[-3:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1200.0, help="duration of the runs")
    parser.add_argument("--only", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root, began = Path(temporary), time.monotonic()
        children = {name: start(name, root / name) for name in options.only}
        rows = []
        try:
            while time.monotonic() - began < options.seconds and any(c.poll() is None for c in children.values()):
                time.sleep(1)
            load = os.getloadavg()
            for name, child in children.items():
                rows.append({**facts(name, root / name, time.monotonic() - began), "running": child.poll() is None})
                print(json.dumps(rows[-1]), flush=True)
        finally:
            for child in children.values():
                child.terminate()
            for child in children.values():
                child.wait()
    if options.json:
        options.json.write_text(json.dumps({"host": host_facts(), "load": load, "rows": rows}, indent=1) + "\n")
    sys.exit(any(row["alarms"] or not row["running"] for row in rows))


if __name__ == "__main__":
    main()
