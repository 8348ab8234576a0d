"""Loss and success of a run of libero over its training: every checkpoint that was kept plays in the simulator.

    powerband train libero ... save_interval=32000 keep_checkpoints=1000 run_dir=RUN
    python benchmarks/libero_curve.py RUN --json benchmarks/results/learning/libero-goal-curve.json \
        --picture docs/pictures/libero-learning.png
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
from powerband.report.curves import read_metrics

COLORS = ("#1f6f8b", "#e0a458", "#b5446e", "#5aa9a3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--picture", type=Path, required=True)
    given = parser.parse_args()
    lines = [line for line in read_metrics(given.run) if "losses/rdt" in line]
    rows = []
    for step in sorted(int(path.name) for path in (given.run / "checkpoints").iterdir() if path.name.isdigit()):
        played = evaluated(given.run / "checkpoints" / str(step), given.episodes)
        seconds = next(line["time_s"] for line in lines if line["env_steps"] >= step)
        updates = next(line["grad_steps"] for line in lines if line["env_steps"] >= step)
        rows += [{**row, "updates": updates, "time_s": seconds} for row in played]
        print(updates, {row["task"]: row["success"] for row in played}, flush=True)
    found = {"host": host_facts(), "train": json.loads((given.run / "run.json").read_text())["command"], "rows": rows}
    found["loss"] = [[line["grad_steps"], round(line["losses/rdt"], 5)] for line in lines]
    given.json.write_text(json.dumps(found, indent=1) + "\n")
    draw(found, given.picture)


def evaluated(checkpoint: Path, episodes: int) -> list[dict]:
    """Rows of `powerband eval`: LIBERO's own initial states, without films."""
    words = [f"episodes={episodes}", "threads=1", "policies=policy", "--json"]
    command = [sys.executable, "-m", "powerband", "eval", str(checkpoint), *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def draw(found: dict, path: Path) -> None:
    """Loss on the left, success with its interval over episodes on the right, both over updates."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4))
    left.plot(*zip(*found["loss"], strict=True), color="#3b3f46", linewidth=1)
    left.set_yscale("log")
    left.set_ylabel("loss")
    for color, task in zip(COLORS, dict.fromkeys(row["task"] for row in found["rows"]), strict=False):
        own = [row for row in found["rows"] if row["task"] == task]
        updates = [row["updates"] for row in own]
        right.plot(updates, [row["success"] for row in own], "o-", color=color, label=task.replace("_", " "))
        low, high = ([row[name] for row in own] for name in ("success_low", "success_high"))
        right.fill_between(updates, low, high, color=color, alpha=0.15, linewidth=0)
    right.set_ylim(0, 1.02)
    right.set_ylabel("success on LIBERO's initial states")
    right.legend(fontsize=8)
    for axis in (left, right):
        axis.set_xlabel("updates")
        axis.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
