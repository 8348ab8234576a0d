"""Time of one COMA mini-batch on a CPU in bf16, compared with fp32, by network width and number of rows.

    python benchmarks/updates/uav_update.py [--threads 1] [--json out.json]

A mini-batch includes critic and actor; its rows are transitions of single UAVs. Each round measures all cases one after
the other, and the results are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from powerband.algos.team_settings import COMAConfig
from powerband.bench.harness import restart_with_cli_environment
from powerband.core.machine.device import host_facts
from powerband.core.rank_context import RankContext
from powerband.doctor.checks.recipes import synthetic_batch
from powerband.recipes.uav.env.env import make_env_spec
from powerband.recipes.uav.learner import make_learner
from powerband.recipes.uav.settings import World

CASES = [
    (precision, width, rows)
    for width, rows in ((256, 60), (256, 128), (256, 256), (64, 128))
    for precision in ("fp32", "bf16")
]
ITERATION_ROWS, PASSES = 660, 5
"""Transitions and passes over them in one iteration of the variant `guide`."""


def main() -> None:
    restart_with_cli_environment()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cpu, spec = torch.device("cpu"), make_env_spec(World())
    learners = {}
    for case in CASES:
        precision, width, rows = case
        learner = make_learner("coma", spec, COMAConfig(width=width), RankContext.single(cpu, precision))
        learners[case] = learner, synthetic_batch(learner, spec, cpu, rows)
        learner.update(learners[case][1])
    times: dict[tuple, list[float]] = {case: [] for case in CASES}
    for _ in range(args.rounds):
        for case, (learner, batch) in learners.items():
            start = time.perf_counter()
            for _ in range(args.updates):
                learner.update(batch)
            times[case].append((time.perf_counter() - start) / args.updates)
    results = []
    for case in CASES:
        precision, width, rows = case
        seconds = statistics.median(times[case])
        fp32_seconds = statistics.median(times[("fp32", width, rows)])
        results.append(
            {
                "precision": precision,
                "width": width,
                "rows": rows,
                "ms": 1e3 * seconds,
                "over_fp32": fp32_seconds / seconds,
                "iteration_s": seconds * ITERATION_ROWS / rows * PASSES,
                "rounds_ms": [1e3 * each for each in times[case]],
            }
        )
        result = results[-1]
        print(
            f"{precision} width {width} rows {rows}: {result['ms']:.1f} ms, {result['over_fp32']:.2f}x fp32; "
            f"{PASSES} passes over {ITERATION_ROWS} transitions: {result['iteration_s']:.1f} s"
        )
    if args.json:
        report = {"host": host_facts(), "threads": args.threads, "rows": results}
        Path(args.json).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
