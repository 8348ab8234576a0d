"""Time of a SAC update with its sampling, by width of the two hidden layers: CPU time on one thread, wall time on more.

Meta-World's sizes: observation 39, action 4. Rounds of all implementations are interleaved; each result is the median.
The compiled functions use one thread, so that several threads show up to which width they are faster than PyTorch.

    python benchmarks/updates/sac_widths.py --json benchmarks/results/updates/sac_widths.json
    python benchmarks/updates/sac_widths.py --threads 2 --json benchmarks/results/updates/sac_threads.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from powerband.algos.fused import choice
from powerband.algos.settings import SACConfig
from powerband.core.machine.device import host_facts
from powerband.core.rank_context import RankContext
from updates import measure, sac_on_device, sb3_sac

INPUTS, ACTIONS = 39, 4
SIZES = ((64, 64), (64, 128), (64, 256), (128, 128), (128, 256), (256, 256), (400, 256), (512, 256))
"""(width, batch) of the measured updates."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    arguments = parser.parse_args()
    choice.WIDTH_OF_SEVERAL_THREADS = choice.WIDTH  # also measures where training uses PyTorch
    torch.set_num_threads(arguments.threads)
    clock, unit = (time.process_time, "cpu_ms") if arguments.threads == 1 else (time.perf_counter, "wall_ms")
    rows = []
    for width, batch in SIZES:
        implementations = {"sb3": sb3_sac(INPUTS, ACTIONS, batch, width)}
        for name, fused, layer_norm in (
            ("PyTorch", False, False), ("fused", True, False), ("fused, layer norms", True, True)
        ):  # fmt: skip
            settings = SACConfig(hidden=(width, width), fused=fused, layer_norm=layer_norm)
            implementations[name] = sac_on_device(INPUTS, ACTIONS, batch, settings, RankContext.single())[0]
        times = measure(implementations, arguments.rounds, 20, clock)
        rows.append({"width": width, "batch": batch, unit: times})
        shown = ", ".join(f"{name} {ms:.2f} ms ({times['sb3'] / ms:.2f}x)" for name, ms in times.items())
        print(f"width {width}, batch {batch}: {shown}", flush=True)
    if arguments.json:
        result = {"host": host_facts(), "threads": arguments.threads, "inputs": INPUTS, "actions": ACTIONS}
        result |= {"rows": rows}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
