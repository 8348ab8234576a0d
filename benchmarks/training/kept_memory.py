"""Training rate on a CPU if the C library keeps freed memory, compared with its default, which returns it.

    python benchmarks/training/kept_memory.py [--seconds 4] [--rounds 3] [
        --json benchmarks/results/training/kept_memory.json]

The command line configures the C library to keep freed memory, unless a MALLOC_ variable is set. The baseline runs set
such a variable to its default value. Otherwise the interleaved runs are the same.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from powerband.bench.harness import Measurement, interleaved, measure
from powerband.core.machine.device import host_facts

LARGE_BATCH = ["global_batch_size=4096", "update_interval=8", "updates_per_interval=1"]
LOOPS = {
    "snakes/ddpg": ["snakes", "algo=ddpg", "off_policy.num_envs=16", "learning_starts=32"],
    "snakes/ddpg, batch 4096": ["snakes", "algo=ddpg", "off_policy.num_envs=16", "learning_starts=32", *LARGE_BATCH],
    "snakes/ppo": ["snakes", "algo=ppo"],
    "gym/sac": ["gym", "algo=sac", "env_id=HalfCheetah-v5", "learning_starts=100"],
    "sketchnav/ppo": ["sketchnav", "variant=small", "scenes.plans=20"],
}
UNTUNED = {"MALLOC_ARENA_TEST": "8"}
"""Default value of the C library; with this variable the command line does not configure the allocator."""


def run(train_arguments: list[str], keep_memory: bool, seconds: float) -> dict[str, Any]:
    """Returns the metrics of one run; with `keep_memory` the allocator keeps freed memory."""
    for name in UNTUNED:
        os.environ.pop(name, None)
    os.environ |= {} if keep_memory else UNTUNED
    return measure([*train_arguments, "gpus=none"], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    cases: dict[str, Measurement] = {
        f"{loop}, {kind}": partial(run, train_arguments, kind == "kept", arguments.seconds)
        for loop, train_arguments in LOOPS.items()
        for kind in ("kept", "handed back")
    }
    rows = {row["case"]: row for row in interleaved(cases, arguments.rounds)}
    gains = {loop: rows[f"{loop}, kept"]["steps_per_s"] / rows[f"{loop}, handed back"]["steps_per_s"] for loop in LOOPS}
    print("speedup by keeping freed memory: " + ", ".join(f"{loop} {gain:.2f}x" for loop, gain in gains.items()))
    if arguments.json:
        result = {"host": host_facts(), "seconds": arguments.seconds, "gains": gains, "rows": list(rows.values())}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
