"""Time of the matrix products of one SAC update alone, compared with complete updates, on one thread of a CPU.

No implementation can be faster than its products. The products write to memory that is allocated once, and nothing else
runs between them. Rounds of all candidates are interleaved; the result is the median CPU time.

    python benchmarks/updates/sac_products.py --json benchmarks/results/updates/sac_products.json
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path

import torch

from updates import measure, powerband_sac, sb3_sac

BATCH, WIDTH = 256, 256


def products(inputs: int, actions: int, dtype: torch.dtype, twin: str) -> tuple[Callable[[], None], float]:
    """Returns a function that computes all products of an update, and their floating-point operations.

    Args:
        inputs, actions: Lengths of observation and action.
        dtype: Type of the products.
        twin: "separate" computes the two critics one after the other, "batched" with batched products.
    """
    tasks: list[tuple[Callable[..., object], torch.Tensor, torch.Tensor, torch.Tensor]] = []
    flop = 0.0

    def product(members: int, rows: int, inner: int, columns: int) -> None:
        nonlocal flop
        flop += 2.0 * members * rows * inner * columns
        lead = (members,) if members > 1 and twin == "batched" else ()
        for _ in range(1 if lead else members):
            left, right = (torch.randn(*lead, *shape).to(dtype) for shape in ((rows, inner), (inner, columns)))
            result = torch.empty(*lead, rows, columns, dtype=dtype)
            tasks.append((torch.bmm if lead else torch.mm, left, right, result))

    def network(members: int, first: int, last: int, weights: bool, inner: bool) -> None:
        """The products of a forward pass, with `weights` those of their gradients, with `inner` those of inputs."""
        sizes = [(first, WIDTH), (WIDTH, WIDTH), (WIDTH, last)]
        for layer, (i, o) in enumerate(sizes):
            product(members, BATCH, i, o)
            if weights:
                product(members, o, BATCH, i)
            if (weights and layer) or inner:
                product(members, BATCH, o, i)

    network(1, inputs, 2 * actions, False, False)  # actions in the next state
    network(2, inputs + actions, 1, False, False)  # target critics
    network(2, inputs + actions, 1, True, False)  # critics
    network(1, inputs, 2 * actions, True, False)  # actor
    network(2, inputs + actions, 1, False, True)  # critics in the loss of the actor

    def run() -> None:
        for function, left, right, result in tasks:
            function(left, right, out=result)

    return run, flop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds")
    parser.add_argument("--updates", type=int, default=10, help="updates per round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = {}
    for inputs, actions in ((17, 6), (39, 4)):
        candidates = {"sb3 update": sb3_sac(inputs, actions, BATCH)}
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            candidates[f"{name} update"] = powerband_sac(inputs, actions, BATCH, name)
            for twin in ("separate", "batched"):
                candidates[f"{name} products, {twin}"], flop = products(inputs, actions, dtype, twin)
        times = measure(candidates, arguments.rounds, arguments.updates)
        label = f"obs {inputs}, action {actions}, batch {BATCH}, 2 x {WIDTH}: {flop / 1e9:.3f} GFLOP"
        cases[label] = {"cpu_ms": times, "gflop": flop / 1e9}
        print(label)
        for name, milliseconds in times.items():
            share = times["sb3 update"] / milliseconds
            print(
                f"  {name:26s} {milliseconds:7.2f} ms   {share:5.2f}x of sb3   {flop / milliseconds / 1e6:6.1f} GFLOP/s"
            )
    if arguments.json:
        machine = platform.processor() or platform.machine()
        result = {"machine": machine, "torch": torch.__version__, "threads": 1, "cases": cases}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
