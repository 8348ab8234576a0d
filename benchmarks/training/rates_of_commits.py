"""Training rate of this version of powerband compared with that of another commit.

    python benchmarks/training/rates_of_commits.py COMMIT [CASE ...] [--pairs 8] [--seconds 30] [--packages FOLDER] \
        [--json FILE]

Both versions train the same configuration at the same time on the same core, which the kernel gives to them in turn.
What slows the machine down therefore slows both, within milliseconds. The rate is that of the environment steps per
second of processor time of all processes of a run, in the second half of the run: after compilation and before the last
checkpoint. Each core of the machine measures another pair. The result of a case is the median over pairs of the ratio
new / old, with the quartiles and a 95 % bootstrap interval of the median.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from powerband.bench.intervals import median_interval
from powerband.core.machine.device import host_facts
from powerband.core.telemetry.metrics_file import MetricsReader

ROOT = Path(__file__).resolve().parents[2]
COMMON = "gpus=none threads=1 precision=fp32 tensorboard=false log_interval_s=1 env_steps=1000000000 seed=3"
CASES = {
    "gym/sac": "gym env_id=Pendulum-v1 algo=sac num_workers=0 sac.fused=false off_policy.warmup=100",
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


def processor_s(pid: int) -> float:
    """Returns the processor time in seconds of a process and its descendants, those that have ended included."""
    processes = [pid]
    for each in processes:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                processes += [int(child) for child in (task / "children").read_text().split()]
    ticks = 0
    for each in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass
class Run:
    """A training of one version.

    Attributes:
        process: Its first process.
        folder: Its run folder.
        points: (seconds of the run, environment steps, processor seconds) of each line of its metrics.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    points: list[tuple[float, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._metrics = MetricsReader(self.folder / "metrics.jsonl")

    def look(self) -> None:
        """Adds the lines that the run has written since the last call."""
        with contextlib.suppress(OSError):
            for line in self._metrics.read():
                if "charts/SPS" in line:
                    self.points.append((line["time_s"], int(line["env_steps"]), processor_s(self.process.pid)))

    def rate(self, seconds: float) -> float:
        """Returns the environment steps per processor second in the second half of the time limit `seconds`.

        Raises:
            ValueError: The run has logged fewer than two lines there.
        """
        points = [point for point in self.points if seconds / 2 <= point[0] < seconds]
        if len(points) < 2:
            raise ValueError(f"{self.folder}: {(self.folder.with_suffix('.log')).read_text()[-1000:]}")
        (_, begin, begin_s), (_, end, end_s) = points[0], points[-1]
        return (end - begin) / (end_s - begin_s)


def train_pair(sources: dict[str, str], case: str, folder: Path, core: int, seconds: float) -> dict[str, Run]:
    """Trains both versions at once on one core, each for `seconds` after its compilation."""
    names = sources if random.random() < 0.5 else list(sources)[::-1]
    runs = {}
    for name in names:
        run_folder = folder / f"{case.replace('/', '-')}-{time.monotonic_ns()}-{name}"
        runs[name] = Run(start(sources[name], CASES[case], run_folder, core, seconds), run_folder)
    deadline = time.monotonic() + 2 * seconds + ALLOWANCE_S
    while any(run.process.poll() is None for run in runs.values()) and time.monotonic() < deadline:
        for run in runs.values():
            run.look()
        time.sleep(0.02)
    for run in runs.values():
        run.process.kill()
        run.process.wait()
    return runs


def ratio_of_a_pair(sources: dict[str, str], case: str, folder: Path, core: int, seconds: float) -> float:
    """Trains both versions at once on one core for `seconds`, and returns the ratio new / old of their rates."""
    runs = train_pair(sources, case, folder, core, seconds)
    return runs["new"].rate(seconds) / runs["old"].rate(seconds)


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
                train_pair(sources, case, folder, cores[0], options.seconds)  # compiles, into caches of both versions
            with ThreadPoolExecutor(len(cores)) as pool:
                for case in options.cases:
                    pairs = [
                        pool.submit(ratio_of_a_pair, sources, case, folder, cores[number % len(cores)], options.seconds)
                        for number in range(options.pairs)
                    ]
                    ratios = []
                    for pair in pairs:
                        ratios.append(pair.result())
                        print(f"{case} {len(ratios)} of {options.pairs}: {ratios[-1]:.4f}", flush=True)
                    low, middle, high = statistics.quantiles(ratios, n=4)
                    row = {"case": case, "pairs": len(ratios), "ratio": middle, "quartiles": [low, high]}
                    rows.append({**row, "interval": median_interval(ratios), "ratios": ratios})
                    print(
                        f"{case}: {middle:.4f} ({low:.4f} to {high:.4f}), interval {rows[-1]['interval']}", flush=True
                    )
                    if options.json:
                        facts = {"host": host_facts(), "arguments": sys.argv[1:], "load": os.getloadavg()[0]}
                        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder / "old"], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
