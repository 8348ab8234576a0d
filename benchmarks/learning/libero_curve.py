"""Training loss of a libero run and success rate of its checkpoints, over the number of updates.

    powerband train libero ... save_interval=32000 keep_checkpoints=1000 run_dir=RUN
    python benchmarks/learning/libero_curve.py RUN --json benchmarks/results/learning/scores/libero-goal-curve.json \
        --figure docs/pictures/libero-learning.png

The option keep_checkpoints keeps all checkpoints; each of them plays episodes in the simulator.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from powerband.core.machine.device import host_facts
from powerband.report.sections.curves import read_metrics

COLORS = ("#1f6f8b", "#e0a458", "#b5446e", "#5aa9a3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--episodes", type=int, default=20, help="episodes per checkpoint and task")
    parser.add_argument("--json", type=Path, required=True, help="file for the results")
    parser.add_argument("--figure", type=Path, required=True, help="file for the figure")
    options = parser.parse_args()
    lines = [line for line in read_metrics(options.run) if "losses/rdt" in line]
    rows = []
    for step in sorted(int(path.name) for path in (options.run / "checkpoints").iterdir() if path.name.isdigit()):
        task_rows = evaluate(options.run / "checkpoints" / str(step), options.episodes)
        seconds = next(line["time_s"] for line in lines if line["env_steps"] >= step)
        updates = next(line["grad_steps"] for line in lines if line["env_steps"] >= step)
        rows += [{**row, "updates": updates, "time_s": seconds} for row in task_rows]
        print(updates, {row["task"]: row["success"] for row in task_rows}, flush=True)
    command = json.loads((options.run / "run.json").read_text())["command"]
    result = {"host": host_facts(), "train": command, "rows": rows}
    result["loss"] = [[line["grad_steps"], round(line["losses/rdt"], 5)] for line in lines]
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    draw(result, options.figure)


def evaluate(checkpoint: Path, episodes: int) -> list[dict]:
    """Returns the rows of `powerband eval` on LIBERO's own initial states."""
    arguments = [f"episodes={episodes}", "threads=1", "policies=policy", "--json"]
    command = [sys.executable, "-m", "powerband", "eval", str(checkpoint), *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def draw(result: dict, path: Path) -> None:
    """Plots the loss on the left, and on the right the success rate with its interval over episodes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4))
    left.plot(*zip(*result["loss"], strict=True), color="#3b3f46", linewidth=1)
    left.set_yscale("log")
    left.set_ylabel("loss")
    for color, task in zip(COLORS, dict.fromkeys(row["task"] for row in result["rows"]), strict=False):
        task_rows = [row for row in result["rows"] if row["task"] == task]
        updates = [row["updates"] for row in task_rows]
        right.plot(updates, [row["success"] for row in task_rows], "o-", color=color, label=task.replace("_", " "))
        low, high = ([row[name] for row in task_rows] for name in ("success_low", "success_high"))
        right.fill_between(updates, low, high, color=color, alpha=0.15, linewidth=0)
    right.set_ylim(0, 1.02)
    right.set_ylabel("success rate on LIBERO's initial states")
    right.legend(fontsize=8)
    for axis in (left, right):
        axis.set_xlabel("updates")
        axis.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
