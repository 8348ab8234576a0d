"""Runs powerband from its command line, and reads the curve of its evaluations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from powerband.report.sections.curves import read_metrics
from rows import EPISODES, FINAL_EPISODES, FINAL_SEED, POINTS

ALONE = ("gpus=none", "threads=1", "num_workers=0", "tensorboard=false")
"""Arguments of a run on one core."""


def powerband(*arguments: str) -> str:
    """Runs one command and returns its standard output; ends with its error if it fails."""
    process = subprocess.run([sys.executable, "-m", "powerband", *arguments], capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"powerband {' '.join(arguments)} ended with status {process.returncode}:\n{process.stderr}")
    return process.stdout


def train_powerband(env_id: str, algo: str, steps: int, seed: int, settings: list[str], folder: Path) -> dict[str, Any]:
    """Trains in the run folder `folder`, evaluates the policy at the end, and returns the result of the row."""
    arguments = [
        "train", "gym", f"env_id={env_id}", f"algo={algo}", f"run.env_steps={steps}", f"run.seed={seed}", *ALONE,
        f"eval_interval={steps // POINTS}", f"eval_episodes={EPISODES}", *settings,
    ]  # fmt: skip
    powerband(*arguments, f"run_dir={folder}")
    rows = json.loads(powerband("eval", str(folder), f"episodes={FINAL_EPISODES}", f"seed={FINAL_SEED}", "--json"))
    final = {key: rows[0][key] for key in ("return", "return_low", "return_high", "episodes")}
    command = "powerband " + " ".join(arguments)
    return {"command": command, "curve": read_curve(read_metrics(folder)), "final": final}


def read_curve(lines: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Returns steps, seconds and return of each evaluation in the lines of ``metrics.jsonl``.

    CPU seconds are the busy cores of each log interval times its duration, without the evaluation's share.
    """
    curve, cpu_s, before_s = [], 0.0, 0.0
    for line in lines:
        training = 1.0 - line.get("perf/share/eval", 0.0)
        cpu_s += line["perf/cpu_cores"] * (line["time_s"] - before_s) * training
        before_s = line["time_s"]
        if "eval/return" in line:
            curve.append(
                {
                    "env_steps": line["env_steps"],
                    "cpu_s": round(cpu_s, 3),
                    "train_s": round(line["time/training_s"], 3),
                    "return": line["eval/return"],
                }
            )
    return curve
