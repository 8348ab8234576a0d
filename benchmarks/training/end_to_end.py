"""Training rate of PPO on snakes in bf16, compared with fp32, by threads and ranks, and the cost of the phase clock.

Rates are agent-steps per second and include rollouts and updates. Each measurement is a separate process of the command
line. The settings are interleaved, and each result is the median over rounds. ``2 threads`` and ``2 ranks`` use two
cores, the other settings one. The cost of the phase clock is measured in one run that switches it on and off.

    python benchmarks/training/end_to_end.py --json benchmarks/results/training/end_to_end.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from powerband.cli.catalogue import configure
from powerband.core.machine.device import host_facts
from powerband.core.run.run import Run
from powerband.core.telemetry.phase_clock import PhaseClock
from powerband.report.sections.curves import read_metrics

TEAM = 3
"""Agents per environment step."""
ARGUMENTS = "snakes gpus=none anneal_lr=false env_steps=1000000000 save_interval=0 log_interval_s=2".split()
SETTINGS = {
    "bf16, 1 thread": ["threads=1", "precision=bf16"],
    "fp32, 1 thread": ["threads=1", "precision=fp32"],
    "bf16, 2 threads": ["threads=2", "precision=bf16"],
    "bf16, 2 ranks": ["nproc=2", "precision=bf16"],
}


def agent_steps_per_s(name: str, seconds: float) -> float:
    """Returns the median rate over the log intervals of a run, without the first two and the last one."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*ARGUMENTS, *SETTINGS[name], f"time_limit_s={seconds}", f"run_dir={folder}/run"]
        subprocess.run([sys.executable, "-m", "powerband", "train", *arguments], check=True, capture_output=True)
        rates = [line["charts/SPS"] for line in read_metrics(Path(folder) / "run")]
    return TEAM * statistics.median(rates[2:-1])


def span_ns() -> float:
    """Returns the nanoseconds per span of the phase clock, the best of 20 rounds of 5,000 spans."""
    clock, best = PhaseClock(), float("inf")
    for _ in range(20):
        start = time.perf_counter_ns()
        for _ in range(5000):
            with clock("env"):
                pass
        best = min(best, (time.perf_counter_ns() - start) / 5000)
    return best


class ClockToggle:
    """Run observer that switches the phase clock on and off at each rollout and records the rollout times.

    Attributes:
        times: Whether the clock was on -> seconds per rollout.
    """

    def __init__(self) -> None:
        self.times: dict[bool, list[float]] = {True: [], False: []}
        self._spans: dict[Any, Any] = {}
        self._started = time.perf_counter()

    def on_tick(self, run: Run) -> None:
        """Records the time of the rollout and switches the clock."""
        clock = run.clock
        self.times[clock.enabled].append(time.perf_counter() - self._started)
        clock.enabled = not clock.enabled
        clock.spans, self._spans = self._spans, clock.spans
        self._started = time.perf_counter()

    def on_batch(self, batch: Any) -> None:
        """Does nothing."""

    def on_average(self, flat: Tensor) -> None:
        """Does nothing."""


def clock_cost(seconds: float) -> tuple[float, int]:
    """Measures the relative cost of the phase clock in one run that switches it on and off at each rollout.

    Returns:
        Median rollout time with the clock divided by the median without it, minus 1, and the number of rollouts.
    """
    observer = ClockToggle()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        arguments = [*ARGUMENTS[1:], "threads=1", f"time_limit_s={seconds}", f"run_dir={folder}/run"]
        recipe, stage, resolved = configure("snakes", arguments)
        command = ["train", "snakes", *arguments]
        with Run.start(resolved.config, recipe="snakes", stage=stage, argv=command, observer=observer) as run:
            recipe.run_stage(stage, run.config, run)
    on, off = (statistics.median(observer.times[enabled][5:]) for enabled in (True, False))
    return on / off - 1, sum(map(len, observer.times.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    parser.add_argument("--seconds", type=float, default=14, help="seconds per run")
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(arguments.rounds):
        for name in SETTINGS:
            rates[name].append(agent_steps_per_s(name, arguments.seconds))
            print(f"{name:32s} {rates[name][-1]:>12,.0f} agent-steps/s", flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    cost, rollouts = clock_cost(4 * arguments.seconds)
    span = span_ns()
    print(f"a span costs {span:.0f} ns; the clock costs {cost:.2%} of the throughput ({rollouts} rollouts)")
    result = {"host": host_facts(), "agent_steps_per_s": medians, "turns": rates}
    result |= {"span_ns": span, "measuring_costs": cost, "rollouts_in_turns": rollouts}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
