"""What it costs to hand freed memory back to the kernel at each update. Whole runs, interleaved, on the CPU.

    python benchmarks/kept_memory.py [--seconds 4] [--rounds 3] [--json benchmarks/results/kept_memory.json]

The runs differ in one variable that changes nothing itself: where a MALLOC_ variable is set, the command line leaves
the C library as it is.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path

from powerband.bench.harness import interleaved, measure
from powerband.core.device import host_facts

BIG = ["global_batch_size=4096", "update_interval=8", "updates_per_interval=1"]
LOOPS = {
    "snakes/ddpg": ["snakes", "algo=ddpg", "off_policy.num_envs=16", "warmup=32"],
    "snakes/ddpg, batch 4096": ["snakes", "algo=ddpg", "off_policy.num_envs=16", "warmup=32", *BIG],
    "snakes/ppo": ["snakes", "algo=ppo"],
    "gym/sac": ["gym", "algo=sac", "env_id=HalfCheetah-v5", "warmup=100"],
    "sketchnav/ppo": ["sketchnav", "variant=small", "scenes.plans=20"],
}
LEFT_ALONE = {"MALLOC_ARENA_TEST": "8"}
"""The C library's own default."""


def run(words: list[str], kept: bool, seconds: float) -> dict:
    """One run that keeps what it frees, or not."""
    for name in LEFT_ALONE:
        os.environ.pop(name, None)
    os.environ |= {} if kept else LEFT_ALONE
    return measure([*words, "gpus=none"], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    cases = {
        f"{loop}, {kind}": partial(run, words, kind == "kept", given.seconds)
        for loop, words in LOOPS.items()
        for kind in ("kept", "handed back")
    }
    rows = {row["case"]: row for row in interleaved(cases, given.rounds)}
    gains = {f: rows[f"{f}, kept"]["steps_per_s"] / rows[f"{f}, handed back"]["steps_per_s"] for f in LOOPS}
    print("kept over handed back: " + ", ".join(f"{loop} {gain:.2f}x" for loop, gain in gains.items()))
    if given.json:
        found = {"host": host_facts(), "seconds": given.seconds, "gains": gains, "rows": list(rows.values())}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
