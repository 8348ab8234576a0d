"""Causes that `powerband profile` reports for injected bottlenecks, compared with the expected causes.

    python benchmarks/diagnosis/faults.py
        --json benchmarks/results/diagnosis/faults.json [--only NAME ...] [--pairs 5] [--draw 1]

Each bottleneck is injected into the real training loops. A row has the first cause of the diagnosis, the expected
cause, and the cause for the near-miss: the same fault in a dose that does not limit the run. With ``--pairs``, the best
advice and the unchanged setting run alternately, and the median realised gain is compared with the predicted gain.

The thresholds (`src/powerband/tune/diagnose/causes.py`) were FROZEN before this suite was first run, and its results
have not changed them. Four doses changed after the first run, because they did not produce the fault:

- a rollout of snakes/ppo took longer than half the window;
- the near-miss of `item` slowed down every conversion of a tensor;
- two ranks shared one environment;
- gym/sac was evaluated once per window.

Two measurements also changed. The time of an update is now the lower quartile instead of the median. A run no longer
passes its thread count to the next run, which had turned a near-miss into a fault.

Two faults are simulated on machines without a GPU. Conversions of a tensor to a Python value take as long as on a busy
device, and numpy rasterises the images of the software renderer.

``--draw N`` multiplies each dose of faults and near-misses by a random factor between 0.7 and 1.5. A draw that was
never run before is a test of thresholds and doses.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

import faulty_envs as envs
from fault_table import Fault, Injection, faults
from powerband import PhaseClock, diagnose
from powerband.bench.harness import restart_with_cli_environment
from powerband.cli import catalogue
from powerband.core.machine.device import host_facts
from powerband.core.recipe import Recipe
from powerband.tune.measure.in_process import measure
from powerband.tune.measure.in_subprocesses import short_run
from powerband.tune.profile import ProfileOptions, profile


def configured(arguments: list[str]) -> tuple[Recipe, str, Any]:
    """Returns recipe, stage and configuration of a command line."""
    recipe, stage, resolved = catalogue.configure(arguments[0], arguments[1:])
    return recipe, stage, resolved.config


def profile_on_ranks(fault: Fault, arguments: list[str], inject: Injection, seconds: float) -> dict[str, Any]:
    """Runs `powerband profile` with several ranks and returns its JSON result."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with inject(), tempfile.TemporaryDirectory() as folder:
        environment |= {name: os.environ[name] for name in (envs.COST_MS, envs.TOKEN) if name in os.environ}
        report = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "powerband", "profile", *arguments, f"nproc={fault.ranks}"]
        command += [f"seconds={seconds:g}", f"--json={report}"]
        completed = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError(completed.stderr[-2000:])
        return json.loads(report.read_text())


def diagnosed(fault: Fault, near_miss: bool, seconds: float) -> dict[str, Any]:
    """Returns cause, findings and advice for a fault or its near-miss."""
    arguments, inject = fault.arguments, fault.inject
    if near_miss:
        arguments, inject = fault.near_miss_arguments, fault.near_miss_inject
    if fault.ranks > 1:
        return profile_on_ranks(fault, arguments, inject, seconds)
    recipe, stage, config = configured(arguments)
    with inject():
        if not near_miss:
            return profile(recipe, stage, config, ProfileOptions(seconds)).to_dict()
        measured = measure(recipe, stage, config, seconds)
        assert measured is not None, f"{fault.name} on {fault.loop}: nothing was measured"
        diagnosis = diagnose(measured.ledgers, measured.facts[0])
        return {
            "cause": diagnosis.cause,
            "sentence": diagnosis.sentence,
            "findings": [{"cause": each.cause} for each in diagnosis.findings],
        }


def realised(fault: Fault, pairs: int, seconds: float) -> dict[str, Any] | None:
    """Runs the unchanged setting and the best advice alternately; returns None if no advice has a predicted gain."""
    recipe, stage, config = configured(fault.arguments)
    with fault.inject():
        best = next(
            (each for each in profile(recipe, stage, config, ProfileOptions(seconds)).advice if each.gain > 1), None
        )
    if best is None:
        return None
    gains = []
    for _ in range(pairs):
        rates = []
        for setting in (config, best.config):
            with fault.inject():
                measured = short_run(recipe, stage, setting, seconds, probe=False)
                assert measured is not None, f"{fault.name} on {fault.loop}: nothing was measured"
                rates.append(measured.steps_per_s)
        gains.append(rates[1] / rates[0])
    gain = statistics.median(gains)
    return {"knob": best.knob, "value": best.value, "predicted_gain": best.gain, "realised_gain": gain,
            "pairs": gains, "error": best.gain / gain - 1}  # fmt: skip


def slow_loader(load_s: float, work_s: float) -> str:
    """Returns the cause of a plain loop over a torch DataLoader; decoding takes `load_s` per sample, work `work_s`."""

    class SlowDataset(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(load_s)
            return torch.zeros(4)

    clock, batches = PhaseClock(), iter(torch.utils.data.DataLoader(SlowDataset(), batch_size=2))
    clock.restart()
    for _ in range(30):
        with clock("data"):
            next(batches)
        with clock("update"):
            time.sleep(work_s)
    return diagnose(clock).cause


def main() -> None:
    restart_with_cli_environment()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="names of the faults to run")
    parser.add_argument("--pairs", type=int, default=0, help="alternating runs of the unchanged setting and the advice")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each measured window")
    parser.add_argument("--draw", type=int, default=0, help="seed of random factors on the doses; 0 for none")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def report(row: dict[str, Any]) -> None:
        rows.append(row)
        print(
            f"{row['fault']:<19}{row['loop']:<12} expected {row['expected']:<24} found {row['named']:<24} "
            f"{'ok   ' if row['right'] else 'WRONG'}  near-miss: {row['near_miss']:<16} "
            f"{'ok' if row['near_miss_left_alone'] else 'FLAGGED'}",
            flush=True,
        )
        if options.json:
            save(options.json, rows, options)

    for fault in faults(options.draw):
        if options.only and fault.name not in options.only:
            continue
        faulty, near_miss = (diagnosed(fault, each, options.seconds) for each in (False, True))
        without_gain = {each["knob"] for each in faulty["advice"] if each["predicted_gain"] <= 1}
        near_miss_causes = {each["cause"] for each in near_miss["findings"]}
        advised = not fault.useless_option or fault.useless_option in without_gain
        row = {
            "fault": fault.name,
            "loop": fault.loop,
            "expected": fault.expected,
            "named": faulty["cause"],
            "also": [each["cause"] for each in faulty["findings"][1:]],
            "sentence": faulty["sentence"],
            "right": faulty["cause"] == fault.expected and advised,
            "near_miss": near_miss["cause"],
            "near_miss_left_alone": fault.expected not in near_miss_causes,
            "remarks": faulty["remarks"],
            "advice": faulty["advice"][:3],
        }
        if options.pairs and fault.ranks == 1:
            row["applied"] = realised(fault, options.pairs, options.seconds)
            if row["applied"]:
                print(f"    {json.dumps(row['applied'])}", flush=True)
        report(row)
    if not options.only or "slow loader" in options.only:
        cause, near_miss_cause = slow_loader(0.01, 0.01), slow_loader(0.0005, 0.02)
        row = {"fault": "slow loader", "loop": "stand-in", "expected": "data-wait", "named": cause}
        row |= {"right": cause == "data-wait", "near_miss": near_miss_cause}
        report({**row, "near_miss_left_alone": near_miss_cause != "data-wait"})


def save(path: Path, rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Writes the rows so far, with the number of faults that were diagnosed correctly in every loop."""
    names = list(dict.fromkeys(row["fault"] for row in rows))
    correct = [name for name in names if all(row["right"] for row in rows if row["fault"] == name)]
    healthy = [name for name in names if all(row["near_miss_left_alone"] for row in rows if row["fault"] == name)]
    applied = [row["applied"] for row in rows if row.get("applied")]
    result = {
        "host": host_facts(),
        "seconds": options.seconds,
        "draw": options.draw,
        "thresholds": "frozen before the first run of this suite",
        "faults": len(names),
        "named_first": len(correct),
        "near_misses_left_alone": len(healthy),
        "predictions": len(applied),
        "predictions_within_15_percent": sum(abs(each["error"]) <= 0.15 for each in applied),
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
