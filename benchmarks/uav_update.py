"""One mini-batch of COMA, critic and actor: precision, width and rows, CPU time; and the shares of a whole iteration.

    python benchmarks/uav_update.py [--threads 1] [--json out.json]

Rows are transitions of single UAVs. The cases of a round are timed one after the other; figures are medians of rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from powerband.algos.coma import COMA, COMAConfig
from powerband.bench.harness import wait_as_runs_do
from powerband.core.device import host_facts
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.doctor.recipes import made_up_batch
from powerband.envs.uav.env import spec_of
from powerband.envs.uav.world import World

CASES = [
    (precision, width, rows)
    for width, rows in ((256, 60), (256, 128), (256, 256), (64, 128))
    for precision in ("fp32", "bf16")
]
ITERATION_ROWS, PASSES = 660, 5


def main() -> None:
    wait_as_runs_do()
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cpu, spec = torch.device("cpu"), spec_of(World())
    learners = {}
    for case in CASES:
        precision, width, rows = case
        learner = COMA(spec, COMAConfig(width=width), cpu, Precision(precision, cpu), NoiseSource(0))
        learners[case] = learner, made_up_batch(learner, spec, cpu, rows)
        learner.update(learners[case][1])
    times: dict[tuple, list[float]] = {case: [] for case in CASES}
    for _ in range(args.rounds):
        for case, (learner, batch) in learners.items():
            began = time.perf_counter()
            for _ in range(args.updates):
                learner.update(batch)
            times[case].append((time.perf_counter() - began) / args.updates)
    rows_found = []
    for case in CASES:
        precision, width, rows = case
        seconds = statistics.median(times[case])
        plain = statistics.median(times[("fp32", width, rows)])
        rows_found.append(
            {
                "precision": precision,
                "width": width,
                "rows": rows,
                "ms": 1e3 * seconds,
                "over_fp32": plain / seconds,
                "iteration_s": seconds * ITERATION_ROWS / rows * PASSES,
                "rounds_ms": [1e3 * each for each in times[case]],
            }
        )
        found = rows_found[-1]
        print(
            f"{precision} width {width} rows {rows}: {found['ms']:.1f} ms, {found['over_fp32']:.2f}x fp32; "
            f"{PASSES} passes over {ITERATION_ROWS} transitions: {found['iteration_s']:.1f} s"
        )
    if args.json:
        result = {"host": host_facts(), "threads": args.threads, "rows": rows_found}
        Path(args.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
