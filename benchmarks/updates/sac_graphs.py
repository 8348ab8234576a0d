"""SAC updates per second on a GPU: eager updates, updates replayed as CUDA graphs, and compiled updates in graphs.

    python benchmarks/updates/sac_graphs.py [--modes eager graphed compiled] [--json benchmarks/results/sac_graphs.json]

An update includes the sampling of its batch from a replay on the device. Observations have 39 values and actions 4, as
in Meta-World. The modes are interleaved, and each result is the median over rounds of seconds of wall time, at whose
end the device has finished. A graph holds `--k` updates; its replay is compared with eager updates before it is timed,
and "graph" is false if the two differ, in which case the updates are eager. The file is written after each row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from powerband.algos.settings import SACConfig
from powerband.core.config.run_config import RunConfig
from powerband.core.machine.device import host_facts, set_backend_flags
from powerband.core.optim.compile import GraphedUpdates, all_tensors
from powerband.core.rank_context import RankContext
from powerband.doctor.stopwatch import synchronize
from updates import sac_on_device

INPUTS, ACTIONS = 39, 4
SIZES: dict[int, tuple[int, ...]] = {256: (256, 256), 2048: (400, 400, 400)}
"""Batch size -> widths of the hidden layers."""
SKIP_STATUS = 77
"""Exit status if the machine cannot measure what was requested."""
MODES = ("eager", "graphed", "compiled")


def updates_of(mode: str, batch: int, precision: str, device: torch.device, k: int) -> GraphedUpdates:
    """Creates the updates of one mode; those of "eager" are never captured."""
    context = RankContext.single(device, precision)
    settings = SACConfig(hidden=SIZES[batch], compile=mode == "compiled")
    update, learner = sac_on_device(INPUTS, ACTIONS, batch, settings, context)

    def state() -> list[torch.Tensor]:
        return all_tensors([learner.state_dict(), context.noise.state_dict()])

    return GraphedUpdates(update, device, state, 0 if mode == "eager" else k, learner.cycle)


def updates_per_s(updates: GraphedUpdates, count: int) -> float:
    """Returns the rate of `count` updates, which the device has finished when the clock stops."""
    synchronize(updates.device)
    start = time.perf_counter()
    for _ in updates.run(count):
        pass
    synchronize(updates.device)
    return count / (time.perf_counter() - start)


def measure(batch: int, precision: str, modes: list[str], device: torch.device, options: argparse.Namespace) -> Any:
    """Returns the row of one batch size and precision: by mode the rates of all rounds and their median."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cases = {mode: updates_of(mode, batch, precision, device, options.k) for mode in modes}
        for updates in cases.values():
            list(updates.run(1 + options.k))  # the first update allocates; the following ones may be captured
    rates: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(options.rounds):
        for mode, updates in cases.items():
            rates[mode].append(updates_per_s(updates, options.updates))
    row: dict[str, Any] = {"batch": batch, "hidden": SIZES[batch], "precision": precision, "modes": {}}
    row["warnings"] = sorted({str(each.message) for each in caught if "graph replay" in str(each.message)})
    for mode, values in rates.items():
        median = statistics.median(values)
        row["modes"][mode] = {"updates_per_s": median, "rounds": values, "graph": cases[mode].graph is not None}
        print(
            f"batch {batch:5}  {precision}  {mode:9}{median:10,.0f} updates/s   graph: {cases[mode].graph is not None}"
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["eager", "graphed"])
    parser.add_argument("--batches", nargs="+", type=int, choices=SIZES, default=list(SIZES))
    parser.add_argument("--precisions", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds")
    parser.add_argument("--updates", type=int, default=400, help="updates of a round, a multiple of k")
    parser.add_argument("--k", type=int, default=20, help="updates per graph")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cpu" and "compiled" in options.modes:
        print("needs CUDA: the compiled mode measures compiled updates inside a CUDA graph")
        sys.exit(SKIP_STATUS)
    flags = set_backend_flags(RunConfig())  # those of a training run
    result: dict[str, Any] = {"host": host_facts(), "flags": flags, "k": options.k, "rows": []}
    for precision in options.precisions:
        for batch in options.batches:
            torch.manual_seed(0)
            result["rows"].append(measure(batch, precision, options.modes, device, options))
            if options.json:
                options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
