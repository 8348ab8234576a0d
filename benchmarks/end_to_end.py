"""End to end: agent-steps/s of PPO on snakes with features, rollout and updates in, and what measuring costs.

Every figure is of the real command line in a process of its own; the settings take turns, and a figure is the median of
the turns. Two cores are asked of ``2 threads`` and ``2 ranks``, one of the others.

    python benchmarks/end_to_end.py --json benchmarks/results/end_to_end.json
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

from powerband.core.device import host_facts
from powerband.core.phases import PhaseClock
from powerband.report.curves import read_metrics

TEAM = 3
WORDS = "train snakes gpus=none anneal_lr=false env_steps=1000000000 save_interval=0 log_interval_s=2".split()
SETTINGS = {
    "bf16, 1 thread": ["threads=1", "precision=bf16"],
    "fp32, 1 thread": ["threads=1", "precision=fp32"],
    "bf16, 2 threads": ["threads=2", "precision=bf16"],
    "bf16, 2 ranks": ["nproc=2", "precision=bf16"],
}


def agent_steps_per_s(name: str, seconds: float) -> float:
    """Median rate of the log intervals of one run, the first ones left out."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*WORDS, *SETTINGS[name], f"time_limit_s={seconds}", f"run_dir={folder}/run"]
        subprocess.run([sys.executable, "-m", "powerband", *words], check=True, capture_output=True)
        rates = [line["charts/SPS"] for line in read_metrics(Path(folder) / "run")]
    return TEAM * statistics.median(rates[2:-1])


def span_ns() -> float:
    """Nanoseconds of one span, the best of 20 rounds of 5,000."""
    clock, best = PhaseClock(), float("inf")
    for _ in range(20):
        start = time.perf_counter_ns()
        for _ in range(5000):
            with clock("env"):
                pass
        best = min(best, (time.perf_counter_ns() - start) / 5000)
    return best


def measuring_costs(seconds: float) -> tuple[float, int]:
    """Share of the throughput that the clock costs: one run whose rollouts are measured and not measured in turns.

    Returns:
        Median time of a measured rollout over that of an unmeasured one, less 1, and the number of rollouts.
    """
    from powerband import cli
    from powerband.core.run import Run

    times: dict[bool, list[float]] = {True: [], False: []}
    state = {"since": time.perf_counter()}
    tick = Run.tick

    def toggling(run: Run, env_steps: int, grad_steps: int) -> None:
        times[run.clock.enabled].append(time.perf_counter() - state["since"])
        tick(run, env_steps, grad_steps)
        run.clock.enabled = not run.clock.enabled
        if run.clock.enabled:
            run.clock.spans = state.pop("spans", run.clock.spans)
        else:
            state["spans"], run.clock.spans = run.clock.spans, {}
        state["since"] = time.perf_counter()

    Run.tick = toggling
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        cli.main([*WORDS, "threads=1", f"time_limit_s={seconds}", f"run_dir={folder}/run"])
    Run.tick = tick
    on, off = (statistics.median(values[5:]) for values in (times[True], times[False]))
    return on / off - 1, len(times[True]) + len(times[False])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--turns", type=int, default=3, help="turns of each setting")
    parser.add_argument("--seconds", type=float, default=14, help="seconds of one run")
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(arguments.turns):
        for name in SETTINGS:
            rates[name].append(agent_steps_per_s(name, arguments.seconds))
            print(f"{name:32s} {rates[name][-1]:>12,.0f} agent-steps/s", flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    cost, rollouts = measuring_costs(4 * arguments.seconds)
    span = span_ns()
    print(f"a span costs {span:.0f} ns; measuring costs {cost:.2%} of the throughput ({rollouts} rollouts in turns)")
    result = {"host": host_facts(), "agent_steps_per_s": medians, "turns": rates}
    result |= {"span_ns": span, "measuring_costs": cost, "rollouts_in_turns": rollouts}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
