"""An update of the trajectory encoder on a CPU: attention in products written out beside torch's fused one.

python benchmarks/attention.py --json benchmarks/results/attention.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from powerband.algos.represent import Represent, RepresentConfig
from powerband.core.device import host_facts, keep_memory, set_threads
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.nets import trajectory
from powerband.nets.attention import written_out

BATCH = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    keep_memory()
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
    for precision in ("bf16", "fp32"):
        learner = Represent(config, "cpu", Precision(precision), NoiseSource(0))
        taken: dict[str, list[float]] = {"written out": [], "fused": []}
        for turn in range(given.rounds + 1):
            for name, function in (("written out", written_out), ("fused", F.scaled_dot_product_attention)):
                trajectory.attend = function
                start = time.perf_counter()
                learner.update(batch)
                if turn:  # the first makes the optimiser's and the allocator's memory
                    taken[name].append(time.perf_counter() - start)
        seconds = {name: statistics.median(each) for name, each in taken.items()}
        rows[precision] = {"seconds": seconds, "faster": seconds["fused"] / seconds["written out"], "rounds": taken}
        print(precision, {name: f"{each:.3f} s" for name, each in seconds.items()}, f"{rows[precision]['faster']:.2f}x")
    if given.json:
        found = {"host": host_facts(), "threads": 1, "batch": BATCH, "rows": rows}
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
