"""What a span costs: nanoseconds of `with clock("env"):`, and its share of a step of the real loops.

    python benchmarks/span.py --json benchmarks/results/span.json

The share is the cost of a span times the spans a second that a profile of the loop counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from powerband.bench.harness import wait_as_runs_do
from powerband.core.device import host_facts
from powerband.core.phases import PhaseClock

LOOPS = {
    "snakes/ddpg": ["snakes", "algo=ddpg"],
    "snakes/ppo": ["snakes", "algo=ppo"],
    "gym/sac": ["gym", "algo=sac"],
    "gym/ppo": ["gym", "algo=ppo", "env_id=CartPole-v1"],
}


def span_ns(rounds: int = 15, spans: int = 20_000) -> dict[str, float]:
    """Median over `rounds` of the nanoseconds of one span, an empty loop taken off: flat, and inside another."""
    clock, results = PhaseClock(), {"flat": [], "nested": []}
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(spans):
            pass
        empty = time.perf_counter_ns() - start
        start = time.perf_counter_ns()
        for _ in range(spans):
            with clock("env"):
                pass
        results["flat"].append((time.perf_counter_ns() - start - empty) / spans)
        with clock("outer"):
            start = time.perf_counter_ns()
            for _ in range(spans):
                with clock("inner"):
                    pass
            results["nested"].append((time.perf_counter_ns() - start - empty) / spans)
    return {name: statistics.median(values) for name, values in results.items()}


def main() -> None:
    wait_as_runs_do()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each loop; 0 measures the span alone")
    options = parser.parse_args()
    result = {"host": host_facts(), "span_ns": span_ns(), "loops": {}}
    print(f"a span: {result['span_ns']['flat']:.0f} ns, inside another {result['span_ns']['nested']:.0f} ns")
    if options.seconds:
        from powerband import catalogue
        from powerband.tune.measure import measure

        for name, (recipe_name, *words) in LOOPS.items():
            recipe, stage, resolved = catalogue.configure(recipe_name, [*words, "gpus=none"])
            measured = measure(recipe, stage, resolved.config, options.seconds, probe=False)
            ledger = measured.ledgers[0]
            spans = sum(figures.count for figures in ledger.spans.values())
            share = spans * result["span_ns"]["nested"] * 1e-9 / ledger.wall_s
            result["loops"][name] = {"spans_per_s": spans / ledger.wall_s, "share_of_wall": share}
            print(f"{name:<12} {spans / ledger.wall_s:>9.0f} spans/s  {share:.3%} of the wall time")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
