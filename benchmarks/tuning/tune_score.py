"""Time to a score with the preset that `powerband tune objective=score` writes, compared with the defaults.

For each loop the search runs as a separate command. Then the preset and the defaults train in alternation on fresh
seeds, which neither the search nor its verification used, each in its own process. The row has the ratio of the
restricted mean times with its interval, the cost of the search, and the runs after which it pays off. A finished row is
kept and skipped, so the script can be interrupted. The machine must be idle.

    python benchmarks/tuning/tune_score.py --work /data/tune_score --json benchmarks/results/tuning/tune_score
    python benchmarks/tuning/tune_score.py cartpole pendulum --seconds 1200 --work /data/tune_score
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from powerband.bench.harness import restart_with_cli_environment
from powerband.cli.catalogue import load
from powerband.core.machine.device import host_facts
from powerband.tune.score.curve import time_to_score
from powerband.tune.score.restricted_mean import ratio_of_means, restricted_mean
from powerband.tune.score.trials.scheduler import EVALUATIONS
from powerband.tune.score.trials.trial import run_trial, train_command

FRESH_SEED = 1_000
"""First of the fresh seeds; the search uses those from 100 and from 10,000."""
WALL_FACTOR, START_S = 10.0, 120.0
"""A run is stopped after this multiple of its seconds of training, and seconds for its start."""
LOOPS: dict[str, tuple[float, list[str]]] = {
    "cartpole": (475.0, ["gym", "env_id=CartPole-v1", "algo=ppo", "env_steps=2000000"]),
    "acrobot": (-100.0, ["gym", "env_id=Acrobot-v1", "algo=ppo", "env_steps=2000000"]),
    "pendulum": (-200.0, ["gym", "env_id=Pendulum-v1", "algo=sac", "env_steps=200000"]),
    "hopper": (1000.0, ["gym", "env_id=Hopper-v5", "algo=ppo", "env_steps=2000000"]),
    "halfcheetah": (1500.0, ["gym", "env_id=HalfCheetah-v5", "algo=sac", "env_steps=500000"]),
    "walker": (1000.0, ["gym", "env_id=Walker2d-v5", "algo=ppo", "env_steps=2000000"]),
    "snakes": (0.9, ["snakes", "algo=ppo"]),
    "reach": (0.8, ["metaworld", "task=reach", "variant=cpu"]),
    "doublependulum": (9000.0, ["gym", "env_id=InvertedDoublePendulum-v5", "algo=ppo", "env_steps=2000000"]),
    "lunarlander": (200.0, ["gym", "env_id=LunarLander-v3", "algo=ppo", "env_steps=2000000"]),
}
"""Loop -> (target, recipe and its arguments). Each runs on the CPU. No search ran on the last two while the search was
built; they were chosen before their first search."""


def searched(loop: str, seconds: float, work: Path) -> dict[str, Any]:
    """Runs the search of a loop in `work` and returns its JSON result."""
    target, arguments = LOOPS[loop]
    report = work / "search.json"
    words = ["objective=score", f"target={target:g}", f"seconds={seconds:g}", f"study_dir={work / 'study'}"]
    command = [sys.executable, "-m", "powerband", "tune", *arguments, "gpus=none", *words, f"--json={report}"]
    if not report.exists():
        subprocess.run(command, check=True)
    return json.loads(report.read_text())


def times_to_score(loop: str, search: dict[str, Any], seeds: int, work: Path) -> dict[str, list[float | None]]:
    """Trains the preset and the defaults in alternation on fresh seeds; returns their times to the score."""
    target, (name, *words) = LOOPS[loop]
    recipe = load(name)
    arguments = {"preset": [*words, "gpus=none", "setup=tuned-score"], "defaults": [*words, "gpus=none"]}
    times: dict[str, list[float | None]] = {name: [] for name in arguments}
    budget, every_s = limit_of(search), search["trial_seconds"] / EVALUATIONS
    for index in range(seeds):
        for kind in arguments if index % 2 == 0 else reversed(arguments):
            folder, seed = work / "fresh" / f"{kind}-{index}-{int(time.time())}", FRESH_SEED + index
            command = train_command(name, recipe.default_stage, arguments[kind], {}, folder, seed, every_s)
            deadline = time.monotonic() + WALL_FACTOR * budget + START_S
            run = run_trial(command, folder, recipe.score, target, budget, deadline)
            times[kind].append(time_to_score(run.curve, target))
            print(f"{loop}: {kind} seed {seed}: {run.outcome}, {times[kind][-1]} s {run.message}", flush=True)
    return times


def limit_of(search: dict[str, Any]) -> float:
    """Seconds of training at which fresh runs are censored: twice the budget of a trial, as in the verification."""
    return 2 * search["trial_seconds"]


def run(loop: str, seconds: float, seeds: int, work: Path) -> dict[str, Any]:
    """Runs the search and the fresh seeds of one loop and returns its row.

    A search that found nothing better leaves an empty preset, so both sides are equal and the ratio is 1.
    """
    work.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CONFIG_HOME"] = str(work / "config")  # the user's own presets stay
    search = searched(loop, seconds, work)
    budget, row = limit_of(search), {"loop": loop, "target": LOOPS[loop][0], "words": LOOPS[loop][1]}
    row |= {"search_s": search["seconds"], "verdict": search["gain"], "chosen": search["chosen"], "ratio": 1.0}
    if search["chosen"] is not None:
        times = times_to_score(loop, search, seeds, work)
        ratio = ratio_of_means(times["preset"], times["defaults"], budget)
        saved_s = restricted_mean(times["defaults"], budget) - restricted_mean(times["preset"], budget)
        row |= {"times": times, "budget_s": budget, "ratio": ratio.value, "interval": [ratio.low, ratio.high]}
        row |= {"saved_s": saved_s, "pays_off_after": math.ceil(search["seconds"] / saved_s) if saved_s > 0 else None}
    return {**row, "host": host_facts()}


def main() -> None:
    restart_with_cli_environment()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("loops", nargs="*", default=list(LOOPS), metavar="loop", help=", ".join(LOOPS))
    parser.add_argument("--seconds", type=float, default=3600.0, help="budget of each search")
    parser.add_argument("--seeds", type=int, default=5, help="fresh seeds of each side")
    parser.add_argument("--work", type=Path, required=True, help="folder of studies and runs, outside of the checkout")
    parser.add_argument("--json", type=Path, help="folder of the rows, one file per loop")
    arguments = parser.parse_args()
    rows = []
    for loop in arguments.loops:
        file = (arguments.json or arguments.work) / f"{loop}.json"
        if not file.exists():
            row = run(loop, arguments.seconds, arguments.seeds, (arguments.work / loop).absolute())
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
        rows.append(json.loads(file.read_text(encoding="utf-8")))
        print(f"{loop}: {rows[-1]['ratio']:.2f} of the defaults' time; {rows[-1]['verdict']}", flush=True)
    mean = math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows))
    worst = max(row["ratio"] for row in rows)
    print(f"geometric mean {mean:.2f} of the defaults' time, worst {worst:.2f}, {len(rows)} loops")


if __name__ == "__main__":
    main()
