"""What the guard costs an update: blocks of the same updates with it and without it, in turns, by processor time.

    python benchmarks/guard.py --json benchmarks/results/guard.json

Both sides draw a batch, update and add the losses up, as the loops do; one side also goes through the loop's `Learning`
and the guard. Small networks on one thread: what an update costs beside the guard is least there.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from powerband.core.device import host_facts
from powerband.core.distributed import Ranks
from powerband.core.guard import Guard
from powerband.core.metrics import Metrics
from powerband.loops.learning import Learning
from updates import our_ddpg, our_ppo, our_sac

CASES: dict[str, Callable[[], Any]] = {
    "sac, 256, obs 3, 256-256": lambda: our_sac(3, 1, 256, "fp32"),
    "ddpg, 64 x 3 agents, 256-256": lambda: our_ddpg(26, 3, 64, "fp32"),
    "ppo, 64, obs 100, 128-128": lambda: our_ppo(64, "fp32"),
}


class Update:
    """Calls an update as a learner: the batch is what it is handed, for the guard to hold."""

    def __init__(self, update: Callable[[], Any]) -> None:
        self.own = update

    def update(self, batch: Any) -> Any:
        return self.own()


def sides(update: Callable[[], Any]) -> dict[str, Callable[[], None]]:
    """One update with the guard, and one without."""
    ranks = Ranks()
    guard, learner, batch = Guard(ranks), Update(update), {"obs": torch.zeros(64, 3)}
    metrics = {True: Metrics([], ranks), False: Metrics([], ranks)}
    learning = Learning(SimpleNamespace(guard=guard, ranks=ranks), learner, None)

    def guarded() -> None:
        losses = learning.update(batch)
        guard.watch(tuple(losses), metrics[True].add(losses))
        guard.tick()

    def plain() -> None:
        metrics[False].add(learner.update(batch))

    return {"guarded": guarded, "plain": plain}


def measure(calls: dict[str, Callable[[], None]], blocks: int, updates: int) -> dict[str, list[float]]:
    """Processor microseconds an update, of each block."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(blocks):
        for name in calls if index % 2 else reversed(list(calls)):
            start = time.process_time()
            for _ in range(updates):
                calls[name]()
            times[name].append((time.process_time() - start) / updates * 1e6)
    return times


def resampled(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """95 % interval of the median, by bootstrap."""
    source = random.Random(0)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(draws))
    return medians[draws // 40], medians[-draws // 40]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--blocks", type=int, default=300, help="blocks of each side")
    parser.add_argument("--updates", type=int, default=20, help="updates in a block")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result: dict[str, Any] = {"host": host_facts(), "cases": {}}

    losses = {f"losses/{index}": torch.rand(()) for index in range(8)}
    nothing = sides(lambda: losses)
    own = measure(nothing, 100, 500)
    result["own_us"] = statistics.median(a - b for a, b in zip(own["guarded"], own["plain"], strict=True))
    print(f"the guard by itself, eight figures: {result['own_us']:.2f} us an update")
    for name, build in CASES.items():
        calls = sides(build())
        measure(calls, 2, options.updates)
        times = measure(calls, options.blocks, options.updates)
        ratios = [a / b - 1 for a, b in zip(times["guarded"], times["plain"], strict=True)]
        update_us, (low, high) = statistics.median(times["plain"]), resampled(ratios)
        share = result["own_us"] / update_us
        paired = {"median": statistics.median(ratios), "low": low, "high": high}
        result["cases"][name] = {"update_us": update_us, "share": share, "paired": paired}
        print(f"{name:<30} update {update_us:6.0f} us  guard {share:.2%}; in turns {paired['median']:+.2%}", end="")
        print(f" (95 %: {low:+.2%} to {high:+.2%})")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
