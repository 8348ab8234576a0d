"""Pictures of uav: curves of policies and planners side by side, and a mission as a film."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from powerband.algos.coma import COMA
from powerband.envs.uav.draw import Moment, draw_mission
from powerband.envs.uav.env import UavEnv
from powerband.envs.uav.world import World
from powerband.loops.evaluate import mean_interval
from powerband.recipes.uav_mission import fly, likeliest

TITLES = {"f1": "F1 of the region of interest", "roi_entropy": "entropy over the region of interest (bits)"}


def draw_curves(flown: dict[str, dict[str, Tensor]]) -> np.ndarray:
    """(480, 1100, 3) uint8: mean and 95 % interval over missions, by moves made, of every policy."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    for axis, (name, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        for policy, figures in flown.items():
            means, lows, highs = zip(*(mean_interval(column) for column in figures[name].unbind(1)), strict=True)
            time = range(len(means))
            (line,) = axis.plot(time, means, label=policy, lw=2.5 if policy == "this run" else 1.2)
            axis.fill_between(time, lows, highs, color=line.get_color(), alpha=0.2, lw=0)
        axis.set(title=title, xlabel="moves", ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def film(learner: COMA, world: World, seed: int) -> list[np.ndarray]:
    """Frames (450, 1200, 3) uint8 of a mission of the likeliest moves, one a move and the end; on this thread alone."""
    moments: list[Moment] = []
    env = UavEnv(1, world, seed=seed, threads=1)
    end = fly(env, likeliest(learner), seed, lambda env, score: moments.append(Moment.of(env, score=score)))
    # The last move ends the mission; the world as it was before it, with the score after it, closes the film.
    frames = [draw_mission(moments[: k + 1], world.altitudes_m, steps=world.num_steps) for k in range(len(moments))]
    caption = f"after the last move: F1 {float(end['f1'][0, -1]):.2f}, entropy {float(end['roi_entropy'][0, -1]):.2f}"
    return [*frames, draw_mission(moments, world.altitudes_m, caption, world.num_steps)]
