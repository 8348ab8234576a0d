"""Speed of the compiled matrix product in GFLOP/s, compared with torch and a plain loop of numba, on one thread.

The sizes are those of updates: B rows of a batch times the weights of a layer (forward), and the transposed gradient of
the outputs times the inputs (gradient of the weights). Each result is the best of many calls.

    python benchmarks/updates/products.py --json benchmarks/results/updates/products.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from powerband.core.machine.device import host_facts
from powerband.core.optim.compiled_adam import compiled
from powerband.nets.compiled.product import add_product

SIZES = ((1, 64, 64), (64, 64, 64), (128, 64, 64), (128, 128, 128), (256, 43, 256), (256, 256, 256), (512, 400, 400))
"""(rows M, inner size J, columns N)."""


@compiled
def plain(c, a, b):
    """Adds the product a b to c (M, N) in plain loops, of which LLVM vectorises the innermost."""
    for m in range(len(a)):
        for j in range(a.shape[1]):
            for n in range(b.shape[1]):
                c[m, n] += a[m, j] * b[j, n]


def best_s(call: Callable[[], object], calls: int) -> float:
    """Returns the shortest time of a call in seconds, after one call that is not timed."""
    call()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--calls", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for m, j, n in SIZES:
        a, b, c = (np.random.default_rng(0).standard_normal(size, np.float32) for size in ((m, j), (j, n), (m, n)))
        tensors, b_transposed = [torch.from_numpy(array) for array in (a, b, c)], np.asfortranarray(b)
        calls: dict[str, Callable[[], object]] = {
            "plain loop": lambda c=c, a=a, b=b: plain(c, a, b),
            "torch": lambda tensors=tensors: torch.mm(tensors[0], tensors[1], out=tensors[2]),
            "add_product": lambda c=c, a=a, b=b: add_product(c, a, b),
            "add_product, b transposed": lambda c=c, a=a, b=b_transposed: add_product(c, a, b),
        }
        speeds = {name: 2e-9 * m * j * n / best_s(call, arguments.calls) for name, call in calls.items()}
        rows.append({"size": [m, j, n], "gflop_per_s": speeds})
        print(f"{m} x {j} x {n}: " + ", ".join(f"{name} {speed:.1f}" for name, speed in speeds.items()), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"host": host_facts(), "threads": 1, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
