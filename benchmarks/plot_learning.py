"""Draws the learning curves of ``docs/recipes`` from the runs of ``benchmarks/learning.py``.

``interval``: share of games won against random over wall time and over episodes, of the runs ``interval-*``.
``strength``: share of decided games that checkpoints of ``snakes-full-*`` win against scripted teams, over wall time.
``uav``: return of missions in training over wall time, of the runs ``uav-coma-*``, ``uav-iac-*``, and of the planners.
``metaworld``: success of experts in training, of `results/learning/metaworld.json`, and env steps that students take to
90 %, of `results/metaworld_students.json`; the runs are not asked for.
``sketchnav``: success of the runs ``sketchnav-ppo-*`` in training, and of the policies on plans not seen before.
Lines are means over seeds, bands run from the lowest to the highest seed.

    python benchmarks/plot_learning.py interval runs/learning docs/pictures/interval-learning.png
    python benchmarks/plot_learning.py strength runs/learning docs/pictures/snakes-strength.png
    python benchmarks/plot_learning.py uav runs/learning docs/pictures/uav-learning.png
    python benchmarks/plot_learning.py metaworld - docs/pictures/metaworld-learning.png
    python benchmarks/plot_learning.py sketchnav runs/learning docs/pictures/sketchnav-learning.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from powerband.report.curves import read_metrics

RESULTS = Path(__file__).parent / "results" / "learning"
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


def curve(folder: Path, x_of: str) -> tuple[np.ndarray, np.ndarray]:
    """x and the share of games won in training, a mean over five log intervals."""
    lines = [line for line in read_metrics(folder) if "charts/win" in line]
    x = np.array([line[x_of] for line in lines], float)
    win = np.array([line["charts/win"] for line in lines])
    return x, np.convolve(np.pad(win, (2, 2), "edge"), np.ones(5) / 5, "valid")


def interval(runs: Path, path: Path) -> None:
    """Draws the runs ``interval-*``."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True)
    for axis, (x_of, scale, label) in zip(
        axes, (("time_s", 1, "seconds"), ("env_steps", EPISODE_STEPS, "episodes")), strict=True
    ):
        for case, (name, color) in CASES.items():
            curves = [
                curve(folder, x_of) for folder in sorted(runs.glob(f"{case}-[0-9]*")) if (folder / "policy").exists()
            ]
            if not curves:
                continue
            grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), POINTS)
            wins = np.stack([np.interp(grid, x, win) for x, win in curves])
            dashed = "--" if "one-update" in case else "-"
            axis.plot(grid / scale, wins.mean(0), dashed, color=color, label=name)
            axis.fill_between(grid / scale, wins.min(0), wins.max(0), color=color, alpha=0.12, linewidth=0)
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("games won against random")
    axes[1].legend(fontsize=8, title="updates : steps of 16 boards", title_fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def strength(runs: Path, path: Path, games: int = 100, checkpoints: int = 8) -> None:
    """Plays the checkpoints of the runs ``snakes-full-*`` against the scripted teams and draws how they do."""
    from powerband.recipes import snakes
    from powerband.recipes.snakes_match import RIVALS, play, player, summary

    figure, axis = plt.subplots(figsize=(6, 3.6))
    for rival, color in (("random", "#8a8f98"), ("greedy", "#1f6f8b"), ("greedy_torus", "#b5446e")):
        curves = []
        for folder in sorted(runs.glob("snakes-full-[0-9]")):
            lines = read_metrics(folder)
            steps, seconds = ([line[key] for line in lines] for key in ("env_steps", "time_s"))
            saved = sorted(int(saved.name) for saved in (folder / "checkpoints").iterdir() if saved.name.isdigit())
            chosen = sorted({saved[int(index)] for index in np.geomspace(1, len(saved), checkpoints) - 1})
            won = []
            for step in chosen:
                own = player(*snakes.load(folder / "checkpoints" / str(step)))
                won.append(summary(play(own, RIVALS[rival](), games, 10_000))["decided_won"])
            curves.append((np.interp(chosen, steps, seconds), np.array(won)))
        grid = np.geomspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), POINTS)
        wins = np.stack([np.interp(grid, x, won) for x, won in curves])
        axis.plot(grid, wins.mean(0), color=color, label=f"against {rival}")
        axis.fill_between(grid, wins.min(0), wins.max(0), color=color, alpha=0.15, linewidth=0)
    axis.set_xscale("log")
    axis.set_xticks([30, 60, 120, 240, 480, 720], ["30", "60", "120", "240", "480", "720"])
    axis.minorticks_off()
    axis.set_xlabel("seconds of training")
    axis.set_ylabel("decided games won")
    axis.set_ylim(0.7, 1.01)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def uav(runs: Path, path: Path) -> None:
    """Draws the runs ``uav-*``, and what the planners earn on the missions of the evaluation."""
    figure, axis = plt.subplots(figsize=(6, 3.6))
    for algo, color in (("coma", "#1f6f8b"), ("iac", "#e0a458")):
        curves = []
        for folder in sorted(runs.glob(f"uav-{algo}-[0-9]")):
            lines = [line for line in read_metrics(folder) if "charts/episodic_return" in line]
            earned = np.array([line["charts/episodic_return"] for line in lines])
            smooth = np.convolve(np.pad(earned, (2, 2), "edge"), np.ones(5) / 5, "valid")
            curves.append((np.array([line["time_s"] for line in lines]), smooth))
        grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), POINTS)
        earned = np.stack([np.interp(grid, x, y) for x, y in curves])
        axis.plot(grid, earned.mean(0), color=color, label=algo)
        axis.fill_between(grid, earned.min(0), earned.max(0), color=color, alpha=0.15, linewidth=0)
    known = json.loads((RESULTS / "uav-coma.json").read_text())["runs"][0]["at_end"]
    for row in known:
        if row["policy"] in ("random", "lawnmower 10 m", "greedy"):
            axis.axhline(row["return"], color="#8a8f98", linestyle=":", linewidth=1)
            axis.annotate(
                row["policy"], (grid[-1], row["return"]), ha="right", va="bottom", fontsize=8, color="#3b3f46"
            )
    axis.set_xlabel("seconds of training on one core")
    axis.set_ylabel("return of a mission")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, loc="center right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def metaworld(_: Path, path: Path) -> None:
    """Draws the experts of `variant=cpu`, one line a run, and the students, a dot a seed."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
    colors = {"reach": "#1f6f8b", "drawer-close": "#e0a458", "window-open": "#5aa9a3", "door-open": "#b5446e"}
    drawn = set()
    for run in json.loads((RESULTS / "metaworld.json").read_text())["runs"]:
        if not run["what"].startswith("variant=cpu:"):
            continue  # settings that it was chosen from
        steps, success = zip(*run["curve_of_10_episodes"], strict=True)
        label = run["task"] if run["task"] not in drawn else None
        drawn.add(run["task"])
        left.plot(np.array(steps) / 1000, success, color=colors[run["task"]], linewidth=1.2, label=label)
    left.set_xlabel("thousand env steps")
    left.set_ylabel("success of 10 episodes")
    left.legend(fontsize=8, loc="lower right")
    rows = json.loads((RESULTS.parent / "metaworld_students.json").read_text())["rows"]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    for place, kind in enumerate(kinds):
        steps = [row["curve"][-1]["env_steps"] / 1000 for row in rows if row["kind"] == kind]
        right.plot(steps, [place + 0.08 * (index - 1) for index in range(len(steps))], "o", color="#1f6f8b")
    right.set_yticks(range(len(kinds)), kinds)
    right.invert_yaxis()
    right.set_xlim(0)
    right.set_xlabel("thousand env steps to 90 % on reach, three seeds")
    for axis in (left, right):
        axis.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def sketchnav(runs: Path, path: Path) -> None:
    """Draws the runs ``sketchnav-ppo-*``, a line and dots a run, with intervals over episodes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), width_ratios=(3, 2))
    colors = {"true": "#5aa9a3", "smooth": "#1f6f8b", "abstract": "#e0a458", "blank": "#8a8f98"}
    for place, (sketch, color) in enumerate(colors.items()):
        told = json.loads((RESULTS / f"sketchnav-ppo-{sketch}.json").read_text())["runs"]
        for number, run in enumerate(told):
            lines = read_metrics(runs / f"sketchnav-ppo-{sketch}-{run['seed']}")
            lines = [line for line in lines if "charts/success" in line]
            steps, success = ([line[key] for line in lines] for key in ("env_steps", "charts/success"))
            smooth = np.convolve(np.pad(success, (2, 2), "edge"), np.ones(5) / 5, "valid")
            left.plot(np.array(steps) / 1e6, smooth, color=color, linewidth=1.2, label="" if number else sketch)
            for row in run["at_end"]:
                if row["policy"] not in ("policy", "likeliest"):
                    continue
                drawn = row["policy"] == "policy"
                error = [[row["success"] - row["success_low"]], [row["success_high"] - row["success"]]]
                x = place + 0.1 * (number - (len(told) - 1) / 2) + 0.24 * (1 - 2 * drawn)
                fill = color if drawn else "white"
                right.errorbar(x, row["success"], error, fmt="o", ms=4, color=color, mfc=fill, capsize=2)
    left.set_xlabel("million env steps")
    left.set_ylabel("success in training (plans of the training)")
    left.legend(fontsize=8, title="sketch", title_fontsize=8)
    right.set_xticks(range(len(colors)), colors)
    right.set_ylabel("success on unseen plans")
    right.set_title("filled: actions drawn, open: the likeliest", fontsize=8)
    for axis in (left, right):
        axis.set_ylim(0)
        axis.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    drawn = {"interval": interval, "strength": strength, "uav": uav, "metaworld": metaworld, "sketchnav": sketchnav}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=drawn)
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    drawn[given.what](given.runs, given.picture)
