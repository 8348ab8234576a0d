"""Training rate of this version of powerband compared with that of another commit.

    python benchmarks/training/rates_of_commits.py COMMIT [CASE ...] [--pairs 8] [--seconds 30] [--packages FOLDER] \
        [--json FILE]

Both versions train the same configuration at the same time, on one core each, and exchange the cores after every run.
What slows the machine down therefore slows both. The rate is that of the environment steps in the second half of a run,
which is after compilation and before the last checkpoint. The result of a case is the median over pairs of the ratio
new / old, with the quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from powerband.core.machine.device import host_facts

ROOT = Path(__file__).resolve().parents[2]
COMMON = "gpus=none threads=1 precision=fp32 tensorboard=false log_interval_s=1 env_steps=1000000000 seed=3"
CASES = {
    "gym/sac": "gym env_id=Pendulum-v1 algo=sac num_workers=0 sac.hidden=160,160 off_policy.warmup=100",
    "snakes/ddpg": "snakes algo=ddpg off_policy.num_envs=4 off_policy.warmup=64 update_interval=8",
    "snakes/ppo": "snakes algo=ppo variant=smoke",
    "uav/coma": "uav algo=coma variant=smoke",
}
"""Case -> arguments that both versions accept, so some options have old names."""
ALLOWANCE_S = 120.0
"""Seconds for start, compilation and end of a run, besides its time limit."""


def start(source: str, words: str, folder: Path, core: int, seconds: float) -> subprocess.Popen[bytes]:
    """Starts a training on one core; `source` is its PYTHONPATH. Compiled code differs, so the caches are separate."""
    cache = str(folder.parent / "caches" / folder.name.rpartition("-")[2])
    environment = {**os.environ, "PYTHONPATH": source, "NUMBA_CACHE_DIR": cache, "XDG_CACHE_HOME": cache}
    command = [sys.executable, "-m", "powerband", "train", *words.split(), *COMMON.split()]
    command += [f"time_limit_s={seconds:g}", f"run_dir={folder}"]
    with folder.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            ["taskset", "-c", str(core), *command], env=environment, cwd=folder.parent, stdout=log, stderr=log
        )


def rate(folder: Path, seconds: float) -> float:
    """Environment steps per second in the second half of a run.

    Raises:
        ValueError: It has logged fewer than two lines there.
    """
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    points = [
        (line["time_s"], line["env_steps"])
        for line in lines
        if "charts/SPS" in line
        and seconds / 2 <= line["time_s"] < seconds  # without the end, with its save and evaluation
    ]
    if len(points) < 2:
        raise ValueError(f"{folder}: {(folder.with_suffix('.log')).read_text()[-1000:]}")
    (begin_s, begin), (end_s, end) = points[0], points[-1]
    return (end - begin) / (end_s - begin_s)


def main() -> None:
    """Measures the cases, and prints one row for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("commit", help="version to compare with")
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="case", help=", ".join(CASES))
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit of each run")
    parser.add_argument("--packages", default="", help="folder with packages that only the other commit needs")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    rows = []
    with tempfile.TemporaryDirectory(prefix="powerband-rates-") as temporary:
        folder = Path(temporary)
        subprocess.run(["git", "worktree", "add", "--detach", folder / "old", options.commit], cwd=ROOT, check=True)
        try:
            sources = {"old": str(folder / "old" / "src") + os.pathsep + options.packages, "new": str(ROOT / "src")}
            for case in options.cases:
                ratios = []
                for pair in range(-1, options.pairs):  # the first one compiles
                    order = cores if pair % 2 else cores[::-1]
                    runs = {name: folder / f"{case.replace('/', '-')}-{pair}-{name}" for name in sources}
                    limit = options.seconds if pair >= 0 else 5.0
                    started = [
                        start(sources[name], CASES[case], runs[name], core, limit)
                        for name, core in zip(sources, order, strict=True)
                    ]
                    deadline = time.monotonic() + limit + ALLOWANCE_S
                    for each in started:
                        each.wait(max(1.0, deadline - time.monotonic()))
                    if pair >= 0:
                        ratios.append(rate(runs["new"], limit) / rate(runs["old"], limit))
                        print(f"{case} {pair + 1} of {options.pairs}: {ratios[-1]:.4f}", flush=True)
                low, middle, high = statistics.quantiles(ratios, n=4)
                row = {"case": case, "pairs": len(ratios), "ratio": middle, "quartiles": [low, high], "ratios": ratios}
                rows.append(row)
                print(f"{case}: {middle:.4f} ({low:.4f} to {high:.4f})", flush=True)
                if options.json:
                    facts = {"host": host_facts(), "arguments": sys.argv[1:], "load": os.getloadavg()[0]}
                    options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder / "old"], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
