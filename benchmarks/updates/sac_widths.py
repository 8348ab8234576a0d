"""CPU time of a SAC update with its sampling, by width of the two hidden layers, on one thread.

Meta-World's sizes: observation 39, action 4. Rounds of all implementations are interleaved; each result is the median.

    python benchmarks/updates/sac_widths.py --json benchmarks/results/updates/sac_widths.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

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
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for width, batch in SIZES:
        implementations = {"sb3": sb3_sac(INPUTS, ACTIONS, batch, width)}
        for name, fused, layer_norm in (
            ("PyTorch", False, False), ("fused", True, False), ("fused, layer norms", True, True)
        ):  # fmt: skip
            settings = SACConfig(hidden=(width, width), fused=fused, layer_norm=layer_norm)
            implementations[name] = sac_on_device(INPUTS, ACTIONS, batch, settings, RankContext.single())[0]
        times = measure(implementations, arguments.rounds, 20)
        rows.append({"width": width, "batch": batch, "cpu_ms": times})
        shown = ", ".join(f"{name} {ms:.2f} ms ({times['sb3'] / ms:.2f}x)" for name, ms in times.items())
        print(f"width {width}, batch {batch}: {shown}", flush=True)
    if arguments.json:
        result = {"host": host_facts(), "threads": 1, "inputs": INPUTS, "actions": ACTIONS, "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
