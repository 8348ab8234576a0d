"""The account `launch` of the phase clock's ledger, compared with a trace of torch.profiler.

    python benchmarks/diagnosis/launch_account.py [--batches 256 4096 65536] \
        [--json benchmarks/results/launch_account.json]

SAC updates run eagerly in a loop with a phase clock, as in a training loop of one's own. The ledger states which share
of the loop the device waits for launches. Two references come from a second loop of the same updates under
torch.profiler: the share of its wall time in which no kernel ran (the gaps between the intervals of all kernels), and
the same with the wall time of the first loop, because the profiler itself slows launches down. A small batch should be
bound by launches and a large one should not, so the shares are compared over batch sizes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from powerband.algos.settings import SACConfig
from powerband.core.machine.device import host_facts
from powerband.core.rank_context import RankContext
from powerband.core.telemetry.phase_clock import PhaseClock
from powerband.doctor.stopwatch import synchronize
from powerband.tune.measure.kernel_trace import KernelTrace
from powerband.tune.measure.ledger import Ledger

sys.path.insert(0, str(Path(__file__).parents[1] / "updates"))

from updates import sac_on_device

INPUTS, ACTIONS = 39, 4
TRACED_UPDATES = 20


def ledger_of(update: Callable[[], object], device: torch.device, count: int) -> Ledger:
    """Returns the ledger of `count` updates in a loop with a phase clock."""
    clock = PhaseClock(device)
    synchronize(device)
    clock.restart()
    for number in range(count):
        with clock("update"):
            update()
            if number == count - 1:
                synchronize(device)  # the update that a real loop waits for at its next log line
    phases = clock.read()
    if device.type != "cuda":
        return Ledger.from_phases(phases)
    trace = KernelTrace(clock, TRACED_UPDATES)
    for _ in range(TRACED_UPDATES):
        with clock("update"):
            update()
    shares = trace.shares(phases, count)
    assert shares is not None, "the profiler recorded no kernels"
    return Ledger.from_phases(phases, {"update": shares["update"]})


def kernels_of(update: Callable[[], object], device: torch.device, count: int) -> tuple[float, float, int]:
    """Runs `count` updates under torch.profiler.

    Returns:
        (seconds in which a kernel or a copy ran, wall seconds, number of kernels and copies).
    """
    activities = [
        torch.profiler.ProfilerActivity.CUDA if device.type == "cuda" else torch.profiler.ProfilerActivity.CPU
    ]
    with torch.profiler.profile(activities=activities) as trace:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            update()
        synchronize(device)
        wall_s = time.perf_counter() - start
    device_type = torch.autograd.DeviceType.CUDA if device.type == "cuda" else torch.autograd.DeviceType.CPU
    events = [event.time_range for event in trace.events() if event.device_type == device_type]
    return 1e-6 * covered((each.start, each.end) for each in events), wall_s, len(events)


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals (start, end)."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(intervals):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def compare(batch: int, device: torch.device, count: int) -> dict[str, Any]:
    """Returns the row of one batch size: the share of launches in the ledger and in the profiler's trace."""
    torch.manual_seed(0)
    update, _ = sac_on_device(INPUTS, ACTIONS, batch, SACConfig(), RankContext.single(device, "bf16"))
    for _ in range(10):
        update()
    ledger = ledger_of(update, device, count)
    kernel_s, profiled_s, kernels = kernels_of(update, device, count)
    row = {
        "batch": batch,
        "updates": count,
        "update_ms": 1e3 * ledger.wall_s / count,
        "kernels_per_update": kernels / count,
        "ledger": ledger.share("launch"),
        "profiler": 1 - kernel_s / profiled_s,
        "profiler_kernels_over_unprofiled_wall": 1 - min(1.0, kernel_s / ledger.wall_s),
        "profiler_slowdown": profiled_s / ledger.wall_s,
        "seconds": ledger.seconds,
        "device_seconds": ledger.device,
    }
    print(
        f"batch {batch:6}: {row['update_ms']:.3f} ms, {row['kernels_per_update']:.0f} kernels; "
        f"launch {row['ledger']:.0%}; "
        f"profiler {row['profiler']:.0%}, over the unprofiled wall {row['profiler_kernels_over_unprofiled_wall']:.0%}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", nargs="+", type=int, default=[256, 4096, 65536])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    device = torch.device(options.device)
    result: dict[str, Any] = {"host": host_facts(), "rows": []}
    for batch in options.batches:
        result["rows"].append(compare(batch, device, options.updates))
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
