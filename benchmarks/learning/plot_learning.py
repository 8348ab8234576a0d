"""Plots of the learning curves in the documentation, from the runs and results of ``benchmarks/learning/scores.py``.

- ``interval``: share of games won against random over wall time and over episodes, of the runs ``interval-*``.
- ``strength``: share of decided games that checkpoints of ``snakes-full-*`` win against scripted teams, over wall time.
- ``uav``: training return over wall time, of the runs ``uav-coma-*`` and ``uav-iac-*``, compared with the planners.
- ``metaworld``: success rate of experts in training, from `results/learning/scores/metaworld.json`, and environment
  steps of students to 90 % success, from `results/learning/metaworld_students.json`. This plot needs no runs.
- ``sketchnav``: training success of the runs ``sketchnav-ppo-*``, and success of their policies on unseen plans.

Lines are means over seeds; bands extend from the lowest to the highest seed.

    python benchmarks/learning/plot_learning.py interval runs/learning docs/pictures/interval-learning.png
    python benchmarks/learning/plot_learning.py strength runs/learning docs/pictures/snakes-strength.png
    python benchmarks/learning/plot_learning.py uav runs/learning docs/pictures/uav-learning.png
    python benchmarks/learning/plot_learning.py metaworld - docs/pictures/metaworld-learning.png
    python benchmarks/learning/plot_learning.py sketchnav runs/learning docs/pictures/sketchnav-learning.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from powerband.report.sections.curves import read_metrics

RESULTS = Path(__file__).parents[1] / "results" / "learning" / "scores"
CASES = {
    "interval-1": ("1 update every step", "#1f6f8b"),
    "interval-5": ("5 every 5", "#5aa9a3"),
    "interval-10": ("10 every 10", "#e0a458"),
    "interval-20": ("20 every 20", "#b5446e"),
    "interval-5-one-update": ("1 every 5", "#8a8f98"),
    "interval-20-one-update": ("1 every 20", "#3b3f46"),
}
EPISODE_STEPS = 200
POINTS = 60
"""Number of points of a curve."""


def curve(folder: Path, tag: str, over: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns x coordinates and values of a metric of a run, smoothed over five log intervals.

    Args:
        folder: The run folder.
        tag: Name of the metric.
        over: Name of the metric on the x axis.
    """
    lines = [line for line in read_metrics(folder) if tag in line]
    values = np.array([line[tag] for line in lines], float)
    smooth = np.convolve(np.pad(values, (2, 2), "edge"), np.ones(5) / 5, "valid")
    return np.array([line[over] for line in lines], float), smooth


def draw_seeds(axis: Axes, curves: list[tuple[np.ndarray, np.ndarray]], grid: np.ndarray, **style: Any) -> None:
    """Plots the mean and the range of several curves, interpolated on `grid`.

    Args:
        axis: Axes of the plot.
        curves: (x, values) of each seed.
        grid: Coordinates on the x axis.
        style: ``color``, ``label``, ``linestyle``; ``alpha`` of the band; ``scale``, which divides the x axis.
    """
    alpha, scale = style.pop("alpha", 0.15), style.pop("scale", 1)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    axis.plot(grid / scale, values.mean(0), **style)
    axis.fill_between(grid / scale, values.min(0), values.max(0), color=style["color"], alpha=alpha, linewidth=0)


def common_range(curves: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """Returns the ends of the x axis that all curves cover."""
    return max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)


def interval(runs: Path, path: Path) -> None:
    """Plots the share of games won of the runs ``interval-*``."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True)
    for axis, (over, scale, label) in zip(
        axes, (("time_s", 1, "seconds"), ("env_steps", EPISODE_STEPS, "episodes")), strict=True
    ):
        for case, (name, color) in CASES.items():
            folders = [folder for folder in sorted(runs.glob(f"{case}-[0-9]*")) if (folder / "policy").exists()]
            curves = [curve(folder, "charts/win", over) for folder in folders]
            if not curves:
                continue
            linestyle = "--" if "one-update" in case else "-"
            style = {"color": color, "label": name, "linestyle": linestyle, "alpha": 0.12, "scale": scale}
            draw_seeds(axis, curves, np.linspace(*common_range(curves), POINTS), **style)
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("share of games won against random")
    axes[1].legend(fontsize=8, title="updates per steps of 16 boards", title_fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def strength(runs: Path, path: Path, games: int = 100, checkpoints: int = 8) -> None:
    """Plots the share of decided games that checkpoints of the runs ``snakes-full-*`` win against scripted teams.

    Plays `games` games per checkpoint and team, with at most `checkpoints` checkpoints per run.
    """
    from powerband.recipes.snakes.evaluation import SCRIPTED_OPPONENTS, as_player, play, summary
    from powerband.recipes.snakes.learners import load

    figure, axis = plt.subplots(figsize=(6, 3.6))
    for rival, color in (("random", "#8a8f98"), ("greedy", "#1f6f8b"), ("greedy_torus", "#b5446e")):
        curves = []
        for folder in sorted(runs.glob("snakes-full-[0-9]")):
            lines = read_metrics(folder)
            steps, seconds = ([line[key] for line in lines] for key in ("env_steps", "time_s"))
            available = sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
            selected = sorted({available[int(index)] for index in np.geomspace(1, len(available), checkpoints) - 1})
            won = []
            for step in selected:
                player = as_player(*load(folder / "checkpoints" / str(step)))
                won.append(summary(play(player, SCRIPTED_OPPONENTS[rival](), games, 10_000))["decided_won"])
            curves.append((np.interp(selected, steps, seconds), np.array(won)))
        draw_seeds(axis, curves, np.geomspace(*common_range(curves), POINTS), color=color, label=f"against {rival}")
    axis.set_xscale("log")
    axis.set_xticks([30, 60, 120, 240, 480, 720], ["30", "60", "120", "240", "480", "720"])
    axis.minorticks_off()
    axis.set_xlabel("seconds of training")
    axis.set_ylabel("share of decided games won")
    axis.set_ylim(0.7, 1.01)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def uav(runs: Path, path: Path) -> None:
    """Plots the returns of the runs ``uav-*``, and those of the planners on the missions of the evaluation."""
    figure, axis = plt.subplots(figsize=(6, 3.6))
    for algo, color in (("coma", "#1f6f8b"), ("iac", "#e0a458")):
        folders = sorted(runs.glob(f"uav-{algo}-[0-9]"))
        curves = [curve(folder, "charts/episodic_return", "time_s") for folder in folders]
        grid = np.linspace(*common_range(curves), POINTS)
        draw_seeds(axis, curves, grid, color=color, label=algo)
    rows = json.loads((RESULTS / "uav-coma.json").read_text())["runs"][0]["at_end"]
    for row in rows:
        if row["policy"] in ("random", "lawnmower 10 m", "greedy"):
            axis.axhline(row["return"], color="#8a8f98", linestyle=":", linewidth=1)
            axis.annotate(
                row["policy"], (grid[-1], row["return"]), ha="right", va="bottom", fontsize=8, color="#3b3f46"
            )
    axis.set_xlabel("seconds of training on one core")
    axis.set_ylabel("return per mission")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, loc="center right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def metaworld(_: Path, path: Path) -> None:
    """Plots the experts of `variant=cpu`, one line per run, and the students, one dot per seed."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
    colors = {"reach": "#1f6f8b", "drawer-close": "#e0a458", "window-open": "#5aa9a3", "door-open": "#b5446e"}
    labelled = set()
    for run in json.loads((RESULTS / "metaworld.json").read_text())["runs"]:
        if not run["what"].startswith("variant=cpu:"):
            continue  # settings that were tried before variant=cpu
        steps, success = zip(*run["curve_of_10_episodes"], strict=True)
        label = run["task"] if run["task"] not in labelled else None
        labelled.add(run["task"])
        left.plot(np.array(steps) / 1000, success, color=colors[run["task"]], linewidth=1.2, label=label)
    left.set_xlabel("thousand env steps")
    left.set_ylabel("success rate of 10 episodes")
    left.legend(fontsize=8, loc="lower right")
    rows = json.loads((RESULTS.parent / "metaworld_students.json").read_text())["rows"]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    for position, kind in enumerate(kinds):
        steps = [row["curve"][-1]["env_steps"] / 1000 for row in rows if row["kind"] == kind]
        right.plot(steps, [position + 0.08 * (index - 1) for index in range(len(steps))], "o", color="#1f6f8b")
    right.set_yticks(range(len(kinds)), kinds)
    right.invert_yaxis()
    right.set_xlim(0)
    right.set_xlabel("thousand env steps to 90 % on reach, three seeds")
    for axis in (left, right):
        axis.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def sketchnav(runs: Path, path: Path) -> None:
    """Plots the runs ``sketchnav-ppo-*``: one line and two dots per run, with 95 % intervals over episodes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), width_ratios=(3, 2))
    colors = {"true": "#5aa9a3", "smooth": "#1f6f8b", "abstract": "#e0a458", "blank": "#8a8f98"}
    for position, (sketch, color) in enumerate(colors.items()):
        results = json.loads((RESULTS / f"sketchnav-ppo-{sketch}.json").read_text())["runs"]
        for number, run in enumerate(results):
            steps, success = curve(runs / f"sketchnav-ppo-{sketch}-{run['seed']}", "charts/success", "env_steps")
            left.plot(steps / 1e6, success, color=color, linewidth=1.2, label="" if number else sketch)
            for row in run["at_end"]:
                if row["policy"] not in ("policy", "likeliest"):
                    continue
                sampled = row["policy"] == "policy"
                error = [[row["success"] - row["success_low"]], [row["success_high"] - row["success"]]]
                x = position + 0.1 * (number - (len(results) - 1) / 2) + 0.24 * (1 - 2 * sampled)
                fill = color if sampled else "white"
                right.errorbar(x, row["success"], error, fmt="o", ms=4, color=color, mfc=fill, capsize=2)
    left.set_xlabel("million env steps")
    left.set_ylabel("success rate in training")
    left.legend(fontsize=8, title="sketch", title_fontsize=8)
    right.set_xticks(range(len(colors)), colors)
    right.set_ylabel("success rate on unseen plans")
    right.set_title("filled: sampled actions, open: most likely actions", fontsize=8)
    for axis in (left, right):
        axis.set_ylim(0)
        axis.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


PLOTS = {"interval": interval, "strength": strength, "uav": uav, "metaworld": metaworld, "sketchnav": sketchnav}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plot", choices=PLOTS, help="plot to draw")
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("figure", type=Path, help="file of the plot")
    arguments = parser.parse_args()
    PLOTS[arguments.plot](arguments.runs, arguments.figure)


if __name__ == "__main__":
    main()
