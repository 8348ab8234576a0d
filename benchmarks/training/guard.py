"""CPU time of the NaN guard per update: guarded updates, compared with the same updates without the guard.

    python benchmarks/training/guard.py --json benchmarks/results/training/guard.json

Both variants sample a batch, update and accumulate the losses, as the training loops do. One variant also uses the
guard and the `GuardedLearner` of the loops. Blocks of both variants are interleaved. The networks are small and run on
one thread, because the relative cost of the guard is then largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from powerband.bench.intervals import median_interval
from powerband.core.machine.device import host_facts
from powerband.core.ranks.ranks import Ranks
from powerband.core.run.nan.nan_guard import NanGuard
from powerband.core.telemetry.metrics import Metrics
from powerband.loops.config import OffPolicyConfig
from powerband.loops.support.guarded_learner import GuardedLearner

sys.path.insert(0, str(Path(__file__).parents[1] / "updates"))

from updates import powerband_ddpg, powerband_ppo, powerband_sac

CASES: dict[str, Callable[[], Any]] = {
    "sac, 256, obs 3, 256-256": lambda: powerband_sac(3, 1, 256, "fp32"),
    "ddpg, 64 x 3 agents, 256-256": lambda: powerband_ddpg(26, 3, 64, "fp32"),
    "ppo, 64, obs 100, 128-128": lambda: powerband_ppo(64, "fp32"),
}


class UpdateLearner:
    """Learner whose update ignores its batch and calls a function that samples a batch itself."""

    def __init__(self, update: Callable[[], Any]) -> None:
        self._update = update

    def update(self, batch: Any) -> Any:
        return self._update()


def variants(update: Callable[[], Any]) -> dict[str, Callable[[], None]]:
    """Returns functions that make one update with the guard and one without it."""
    ranks = Ranks()
    guard, learner, batch = NanGuard(ranks), UpdateLearner(update), {"obs": torch.zeros(64, 3)}
    guarded_metrics, plain_metrics = Metrics([], ranks), Metrics([], ranks)
    run: Any = SimpleNamespace(guard=guard, ranks=ranks, observer=None)
    guarded_learner = GuardedLearner(run, cast(Any, learner), OffPolicyConfig())

    def guarded() -> None:
        losses = guarded_learner.update(batch)
        guard.record(tuple(losses), guarded_metrics.add(losses))
        guard.tick()

    def plain() -> None:
        plain_metrics.add(learner.update(batch))

    return {"guarded": guarded, "plain": plain}


def measure(calls: dict[str, Callable[[], None]], blocks: int, updates: int) -> dict[str, list[float]]:
    """Returns the CPU microseconds per update in each block; the order of the functions alternates."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(blocks):
        for name in calls if index % 2 else reversed(list(calls)):
            start = time.process_time()
            for _ in range(updates):
                calls[name]()
            times[name].append((time.process_time() - start) / updates * 1e6)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--blocks", type=int, default=300, help="blocks per variant")
    parser.add_argument("--updates", type=int, default=20, help="updates per block")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result: dict[str, Any] = {"host": host_facts(), "cases": {}}

    losses = {f"losses/{index}": torch.rand(()) for index in range(8)}
    times = measure(variants(lambda: losses), 100, 500)
    result["own_us"] = statistics.median(a - b for a, b in zip(times["guarded"], times["plain"], strict=True))
    print(f"the guard alone, with eight losses: {result['own_us']:.2f} us per update")
    for name, build in CASES.items():
        calls = variants(build())
        measure(calls, 2, options.updates)
        times = measure(calls, options.blocks, options.updates)
        ratios = [a / b - 1 for a, b in zip(times["guarded"], times["plain"], strict=True)]
        update_us, (low, high) = statistics.median(times["plain"]), median_interval(ratios)
        share = result["own_us"] / update_us
        paired = {"median": statistics.median(ratios), "low": low, "high": high}
        result["cases"][name] = {"update_us": update_us, "share": share, "paired": paired}
        print(
            f"{name:<30} update {update_us:6.0f} us  guard {share:.2%}; paired blocks {paired['median']:+.2%}", end=""
        )
        print(f" (95 %: {low:+.2%} to {high:+.2%})")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
