"""Cost of a span of the phase clock in nanoseconds, and as a share of the wall time of training loops.

    python benchmarks/training/span.py --json benchmarks/results/training/span.json

A span is `with clock("env"): ...`. Its cost is compared with an empty loop. The share of a training loop is the cost of
a span times the number of spans per second of the loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from powerband.bench.harness import restart_with_cli_environment
from powerband.core.machine.device import host_facts
from powerband.core.telemetry.phase_clock import PhaseClock

LOOPS = {
    "snakes/ddpg": ["snakes", "algo=ddpg"],
    "snakes/ppo": ["snakes", "algo=ppo"],
    "gym/sac": ["gym", "algo=sac"],
    "gym/ppo": ["gym", "algo=ppo", "env_id=CartPole-v1"],
}


def span_ns(rounds: int = 15, spans: int = 20_000) -> dict[str, float]:
    """Returns the median nanoseconds of a flat and of a nested span, minus those of an empty loop."""
    clock = PhaseClock()
    results: dict[str, list[float]] = {"flat": [], "nested": []}
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
    restart_with_cli_environment()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per profiled loop; 0 skips the loops")
    options = parser.parse_args()
    result = {"host": host_facts(), "span_ns": span_ns(), "loops": {}}
    print(f"span: {result['span_ns']['flat']:.0f} ns, nested {result['span_ns']['nested']:.0f} ns")
    if options.seconds:
        from powerband.cli import catalogue
        from powerband.tune.measure.in_process import measure

        for name, (recipe_name, *arguments) in LOOPS.items():
            recipe, stage, resolved = catalogue.configure(recipe_name, [*arguments, "gpus=none"])
            measured = measure(recipe, stage, resolved.config, options.seconds, probe=False)
            assert measured is not None, f"{name}: nothing was measured"
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
