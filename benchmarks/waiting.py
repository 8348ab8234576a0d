"""How torch's threads wait for work: asleep at once, or looking for it for a while first. Whole runs, interleaved.

    python benchmarks/waiting.py [--seconds 4] [--rounds 2] [--json out.json]

Two threads or more; the runs differ in GOMP_SPINCOUNT alone.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path

from powerband.bench.harness import interleaved, measure
from powerband.core.device import WAITING, host_facts

LOOPS = {
    "ppo": ["snakes", "algo=ppo"],
    "ddpg": ["snakes", "algo=ddpg", "off_policy.num_envs=16", "warmup=32"],
    "sac": ["gym", "algo=sac", "env_id=HalfCheetah-v5", "precision=bf16", "overlap=true", "warmup=100"],
}


def run(words: list[str], spins: str, seconds: float) -> dict:
    """One run whose threads wait so."""
    os.environ |= {**WAITING, "GOMP_SPINCOUNT": spins}
    return measure([*words, "gpus=none"], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    kinds = {"asleep": "0", "looking": WAITING["GOMP_SPINCOUNT"]}
    cases = {
        f"{loop} {kind}": partial(run, words, spins, args.seconds)
        for loop, words in LOOPS.items()
        for kind, spins in kinds.items()
    }
    rows = {row["case"]: row for row in interleaved(cases, args.rounds)}
    gains = {f: rows[f"{f} looking"]["steps_per_s"] / rows[f"{f} asleep"]["steps_per_s"] for f in LOOPS}
    print("looking over asleep: " + ", ".join(f"{loop} {gain:.2f}x" for loop, gain in gains.items()))
    if args.json:
        found = {"host": host_facts(), "seconds": args.seconds, "gains": gains, "rows": list(rows.values())}
        Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
