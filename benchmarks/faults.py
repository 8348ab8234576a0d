"""The fault suite: bottlenecks injected into the real loops, and what `powerband profile` says of each.

    python benchmarks/faults.py --json benchmarks/results/faults.json [--only NAME ...] [--pairs 5] [--draw 1]

For every fault: the cause that is named first, the one that should be, and whether the near-miss (the same fault in a
dose that does not bind) is left alone. With --pairs, the best advice is run against the setting as it was, in turns,
and the median of the realised gains is compared with the predicted one.

The thresholds (`src/powerband/tune/causes.py`) were FROZEN before this suite was first run; its results are reported as
they are and no threshold is moved to fit them. After the first run four doses were changed, as they made no such
fault: a rollout of snakes/ppo took longer than half the window, the near-miss of `item` made every question slow, one
environment was asked of two ranks, and gym/sac was evaluated once a window; the probe of an update went from its median
to its lower quartile; and a run no longer handed its threads to the next one, which had made a near-miss a fault. Two
faults are stand-ins: where there is no GPU, asking a tensor for its value is made to cost what it would on a busy
device, and a picture is rasterised by numpy.

``--draw N`` draws every dose, of faults and near-misses, between 0.7 and 1.5 times the written one: a draw that was
never run before judges thresholds and doses alike.
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
from powerband import PhaseClock, catalogue, diagnose
from powerband.bench.harness import wait_as_runs_do
from powerband.core.device import host_facts
from powerband.tune.apart import short_run
from powerband.tune.measure import measure
from powerband.tune.profile import Options, profile


def configured(words: list[str]) -> tuple[Any, str, Any]:
    recipe, stage, resolved = catalogue.configure(words[0], words[1:])
    return recipe, stage, resolved.config


def on_ranks(fault: Fault, words: list[str], inject: Injection, seconds: float) -> dict[str, Any]:
    """What the command line says, run with ranks: cause, findings, advice."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with inject(), tempfile.TemporaryDirectory() as folder:
        environment |= {name: os.environ[name] for name in (envs.COST_MS, envs.TOKEN) if name in os.environ}
        report = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "powerband", "profile", *words, f"nproc={fault.ranks}", f"seconds={seconds:g}"]
        done = subprocess.run([*command, f"--json={report}"], env=environment, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError(done.stderr[-2000:])
        return json.loads(report.read_text())


def judged(fault: Fault, near: bool, seconds: float) -> dict[str, Any]:
    """Cause, findings and advice of the fault, or of its near-miss."""
    words, inject = (fault.near_words, fault.near_inject) if near else (fault.words, fault.inject)
    if fault.ranks > 1:
        return on_ranks(fault, words, inject, seconds)
    recipe, stage, config = configured(words)
    with inject():
        if not near:
            return profile(recipe, stage, config, Options(seconds)).to_dict()
        seen = measure(recipe, stage, config, seconds)
        found = diagnose(seen.ledgers, seen.facts[0])
        return {
            "cause": found.cause,
            "sentence": found.sentence,
            "findings": [{"cause": f.cause} for f in found.findings],
        }


def realised(fault: Fault, pairs: int, seconds: float) -> dict[str, Any] | None:
    """The best advice run against the setting as it was, in turns; None where nothing is advised."""
    recipe, stage, config = configured(fault.words)
    with fault.inject():
        best = next((each for each in profile(recipe, stage, config, Options(seconds)).advice if each.gain > 1), None)
    if best is None:
        return None
    gains = []
    for _ in range(pairs):
        rates = []
        for setting in (config, best.config):
            with fault.inject():
                rates.append(short_run(recipe, stage, setting, seconds, probe=False).steps_per_s)
        gains.append(rates[1] / rates[0])
    gain = statistics.median(gains)
    return {"knob": best.knob, "value": best.value, "predicted_gain": best.gain, "realised_gain": gain,
            "pairs": gains, "error": best.gain / gain - 1}  # fmt: skip


def slow_loader(load_s: float, work_s: float) -> str:
    """The stand-in for a recipe with data: a torch DataLoader whose samples are slow to decode, in a plain loop."""

    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(load_s)
            return torch.zeros(4)

    clock, batches = PhaseClock(), iter(torch.utils.data.DataLoader(Slow(), batch_size=2))
    clock.restart()
    for _ in range(30):
        with clock("data"):
            next(batches)
        with clock("update"):
            time.sleep(work_s)
    return diagnose(clock).cause


def main() -> None:
    wait_as_runs_do()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--draw", type=int, default=0)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print(
            f"{row['fault']:<19}{row['loop']:<12} expected {row['expected']:<24} named {row['named']:<24} "
            f"{'ok   ' if row['right'] else 'WRONG'}  near-miss: {row['near_miss']:<16} "
            f"{'ok' if row['near_miss_left_alone'] else 'FLAGGED'}",
            flush=True,
        )
        if options.json:
            save(options.json, rows, options)

    for fault in faults(options.draw):
        if options.only and fault.name not in options.only:
            continue
        sick, well = judged(fault, False, options.seconds), judged(fault, True, options.seconds)
        useless = {each["knob"] for each in sick["advice"] if each["predicted_gain"] <= 1}
        near = {each["cause"] for each in well["findings"]}
        row = {
            "fault": fault.name,
            "loop": fault.loop,
            "expected": fault.expected,
            "named": sick["cause"],
            "also": [each["cause"] for each in sick["findings"][1:]],
            "sentence": sick["sentence"],
            "right": sick["cause"] == fault.expected and (not fault.advises or fault.advises in useless),
            "near_miss": well["cause"],
            "near_miss_left_alone": fault.expected not in near,
            "remarks": sick["remarks"],
            "advice": sick["advice"][:3],
        }
        if options.pairs and fault.ranks == 1:
            row["applied"] = realised(fault, options.pairs, options.seconds)
            if row["applied"]:
                print(f"    {json.dumps(row['applied'])}", flush=True)
        keep(row)
    if not options.only or "slow loader" in options.only:
        named, near_named = slow_loader(0.01, 0.01), slow_loader(0.0005, 0.02)
        row = {"fault": "slow loader", "loop": "stand-in", "expected": "data-wait", "named": named}
        row |= {"right": named == "data-wait", "near_miss": near_named}
        keep({**row, "near_miss_left_alone": near_named != "data-wait"})


def save(path: Path, rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Writes what is known so far, with the count of faults whose every loop was judged rightly."""
    names = list(dict.fromkeys(row["fault"] for row in rows))
    right = [name for name in names if all(row["right"] for row in rows if row["fault"] == name)]
    spared = [name for name in names if all(row["near_miss_left_alone"] for row in rows if row["fault"] == name)]
    applied = [row["applied"] for row in rows if row.get("applied")]
    result = {
        "host": host_facts(),
        "seconds": options.seconds,
        "draw": options.draw,
        "thresholds": "frozen before the first run of this suite",
        "faults": len(names),
        "named_first": len(right),
        "near_misses_left_alone": len(spared),
        "predictions": len(applied),
        "predictions_within_15_percent": sum(abs(each["error"]) <= 0.15 for each in applied),
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
