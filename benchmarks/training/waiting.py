"""Training rate if waiting OpenMP threads spin before they sleep, compared with threads that sleep at once.

    python benchmarks/training/waiting.py [--seconds 4] [--rounds 2] [--json out.json]

The runs are interleaved, use two or more threads, and differ only in GOMP_SPINCOUNT.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path

from powerband.bench.harness import interleaved, measure
from powerband.core.machine.device import OPENMP_WAIT_VARIABLES, host_facts

LOOPS = {
    "ppo": ["snakes", "algo=ppo"],
    "ddpg": ["snakes", "algo=ddpg", "off_policy.num_envs=16", "learning_starts=32"],
    "sac": ["gym", "algo=sac", "env_id=HalfCheetah-v5", "precision=bf16", "overlap=true", "learning_starts=100"],
}


def run(arguments: list[str], spins: str, seconds: float) -> dict:
    """Returns the metrics of one run with a spin count."""
    os.environ |= {**OPENMP_WAIT_VARIABLES, "GOMP_SPINCOUNT": spins}
    return measure([*arguments, "gpus=none"], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    kinds = {"sleeping": "0", "spinning": OPENMP_WAIT_VARIABLES["GOMP_SPINCOUNT"]}
    cases = {
        f"{loop} {kind}": partial(run, arguments, spins, args.seconds)
        for loop, arguments in LOOPS.items()
        for kind, spins in kinds.items()
    }
    rows = {row["case"]: row for row in interleaved(cases, args.rounds)}
    gains = {loop: rows[f"{loop} spinning"]["steps_per_s"] / rows[f"{loop} sleeping"]["steps_per_s"] for loop in LOOPS}
    print("spinning compared with sleeping: " + ", ".join(f"{loop} {gain:.2f}x" for loop, gain in gains.items()))
    if args.json:
        result = {"host": host_facts(), "seconds": args.seconds, "gains": gains, "rows": list(rows.values())}
        Path(args.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
