"""Update time of Meta-World's trajectory encoder on a CPU: explicit attention, compared with torch's fused one.

python benchmarks/updates/attention.py --json benchmarks/results/updates/attention.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from powerband.core.machine.device import host_facts, keep_freed_memory, set_threads
from powerband.core.optim.precision import PrecisionName
from powerband.core.rank_context import RankContext
from powerband.nets.attention import explicit_attention
from powerband.recipes.metaworld.algos.represent import RepresentationLearner
from powerband.recipes.metaworld.nets import trajectory
from powerband.recipes.metaworld.settings import RepresentConfig

BATCH = 128
PRECISIONS: tuple[PrecisionName, ...] = ("bf16", "fp32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    keep_freed_memory()
    set_threads(1, 1)
    config = RepresentConfig()
    length = config.net.length
    batch = {
        "state": torch.randn(BATCH, length, 21),
        "action": torch.randn(BATCH, length - 1, 4),
        "reward": torch.rand(BATCH, length - 1, 1),
        "length": torch.randint(5, length + 1, (BATCH,)),
        "task": torch.randint(0, 3, (BATCH,)),
    }
    rows = {}
    for precision in PRECISIONS:
        learner = RepresentationLearner(config, RankContext.single(precision=precision))
        times: dict[str, list[float]] = {"written out": [], "fused": []}
        for index in range(arguments.rounds + 1):
            for name, function in (("written out", explicit_attention), ("fused", F.scaled_dot_product_attention)):
                trajectory.attend = function
                start = time.perf_counter()
                learner.update(batch)
                if index:  # round 0 warms up: it allocates memory
                    times[name].append(time.perf_counter() - start)
        seconds = {name: statistics.median(values) for name, values in times.items()}
        rows[precision] = {"seconds": seconds, "faster": seconds["fused"] / seconds["written out"], "rounds": times}
        print(
            precision,
            {name: f"{median:.3f} s" for name, median in seconds.items()},
            f"{rows[precision]['faster']:.2f}x",
        )
    if arguments.json:
        result = {"host": host_facts(), "threads": 1, "batch": BATCH, "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
