"""Images of uav: draws the metrics of policies and planners as curves, and a mission as a video."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from powerband.loops.evaluate import mean_interval
from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.env.mission_image import MissionSnapshot, draw_mission
from powerband.recipes.uav.evaluation import deterministic_policy, fly_missions
from powerband.recipes.uav.learner import TeamLearner
from powerband.recipes.uav.settings import World

TITLES = {"f1": "F1 of the region of interest", "roi_entropy": "entropy over the region of interest (bits)"}


def draw_curves(metrics: dict[str, dict[str, Tensor]], title: str = "") -> np.ndarray:
    """Draws F1 and entropy as curves over the moves of a mission: the mean over missions with its 95 % interval.

    Args:
        metrics: For each policy, its name and its results from `fly_missions`.
        title: Text above the curves.

    Returns:
        (480, 1100, 3) uint8 RGB.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    for axis, (name, heading) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        for policy, values in metrics.items():
            means, lows, highs = zip(*(mean_interval(column) for column in values[name].unbind(1)), strict=True)
            moves = range(len(means))
            (line,) = axis.plot(moves, means, label=policy, lw=2.5 if policy == "this run" else 1.2)
            axis.fill_between(moves, lows, highs, color=line.get_color(), alpha=0.2, lw=0)
        axis.set(title=heading, xlabel="moves", ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    if title:
        figure.suptitle(title)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def film_mission(learner: TeamLearner, world: World, seed: int, device: torch.device | str = "cpu") -> list[np.ndarray]:
    """Flies one mission with the most likely moves of `learner`, and draws an image before each move and at the end.

    All computation on the CPU is on the calling thread.

    Args:
        learner: Learner on `device`.
        world: Settings of the mission.
        seed: Seed of the mission.
        device: Device that simulates the mission.

    Returns:
        Frames (450, 1200, 3) uint8 RGB: one per move, and one for the end.
    """
    snapshots: list[MissionSnapshot] = []
    env = UavEnv(1, world, device=device, seed=seed, threads=1)
    metrics = fly_missions(
        env,
        deterministic_policy(learner),
        seed,
        on_move=lambda env, score: snapshots.append(MissionSnapshot.from_env(env, score=score)),
    )
    # The last move ends the mission. The last frame shows the state before this move and the metrics after it.
    frames = [draw_mission(snapshots[: k + 1], world.altitudes_m, steps=world.num_steps) for k in range(len(snapshots))]
    f1, entropy = float(metrics["f1"][0, -1]), float(metrics["roi_entropy"][0, -1])
    caption = f"after the last move: F1 {f1:.2f}, entropy {entropy:.2f}"
    return [*frames, draw_mission(snapshots, world.altitudes_m, caption, world.num_steps)]
