"""Mission image: draws the hidden map with the paths of the UAVs, the belief of the team, and its metrics over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.env.world import LOG_ODDS_UNITS
from powerband.recipes.uav.settings import AREA_M, FIELD_OF_VIEW, SPACING_M

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")


@dataclass(frozen=True)
class MissionSnapshot:
    """State of one mission with A UAVs and M x M cells at one time, in host memory.

    Attributes:
        truth: (M, M) uint8, 1 in the region of interest.
        belief: (M, M) float32: probability of the region of interest, from all measurements.
        position: (A, 3): lattice x, lattice y and altitude index of each UAV.
        heard: (A,) int: for each UAV, bit j is set if it received the message of UAV j.
        f1, roi_entropy: F1 score of the region of interest, and mean entropy over it in bits.
    """

    truth: np.ndarray
    belief: np.ndarray
    position: np.ndarray
    heard: np.ndarray
    f1: float
    roi_entropy: float

    @classmethod
    def from_env(cls, env: UavEnv, row: int = 0, score: dict[str, Tensor] | None = None) -> MissionSnapshot:
        """Copies the current state of the mission with index `row` of `env`.

        `score` is the result of ``env.score()``; None computes it.
        """
        score, missions = score or env.score(), env.missions
        odds = missions.belief[row, -1].float() / LOG_ODDS_UNITS
        return cls(
            truth=missions.truth[row].cpu().numpy().copy(),
            belief=torch.sigmoid(odds).cpu().numpy(),
            position=missions.position[row].cpu().numpy().copy(),
            heard=missions.heard[row].cpu().numpy().copy(),
            f1=float(score["f1"][row]),
            roi_entropy=float(score["roi_entropy"][row]),
        )


def draw_mission(
    snapshots: Sequence[MissionSnapshot], altitudes_m: Sequence[float], title: str = "", steps: int = 0
) -> np.ndarray:
    """Draws the last of `snapshots`, with the paths of the UAVs and the curves of the metrics up to this time.

    Args:
        snapshots: Snapshots from the start of the mission on.
        altitudes_m: Altitudes in metres, by altitude index.
        title: Text above the image.
        steps: Moves of a complete mission, the length of the time axis; 0 uses the number of snapshots.

    Returns:
        (450, 1200, 3) uint8 RGB.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    truth, belief, scores = figure.subplots(1, 3)
    last, edges = snapshots[-1], (0, AREA_M, 0, AREA_M)
    truth.imshow(last.truth.T, origin="lower", extent=edges, cmap="Greys", vmin=0, vmax=2, interpolation="nearest")
    belief_image = belief.imshow(last.belief.T, origin="lower", extent=edges, cmap="RdYlBu_r", vmin=0, vmax=1)
    figure.colorbar(belief_image, ax=belief, fraction=0.045, label="probability of the region of interest")
    truth.set_title("hidden map and paths (line width: altitude)")
    belief.set_title("belief from all measurements")
    path = np.stack([snapshot.position for snapshot in snapshots])
    for i in range(path.shape[1]):
        colour, xy = COLOURS[i % len(COLOURS)], SPACING_M * path[:, i, :2]
        for k in range(len(path) - 1):
            width = 1 + 1.5 * path[k + 1, i, 2]
            truth.plot(*xy[k : k + 2].T, color=colour, lw=width, solid_capstyle="round", alpha=0.8)
        height = altitudes_m[path[-1, i, 2]]
        truth.plot(*xy[-1], "o", color=colour, ms=8, mec="black", label=f"UAV {i + 1}, {height:g} m")
        belief.add_patch(_footprint(xy[-1], height, colour))
        for j in range(i):
            if last.heard[i] >> j & 1:
                belief.plot(*np.stack([xy[-1], SPACING_M * path[-1, j, :2]]).T, color="black", lw=0.8, ls=":")
    for axis in (truth, belief):
        axis.set(xlim=(-3, AREA_M + 3), ylim=(-3, AREA_M + 3), xlabel="x (m)", ylabel="y (m)", aspect="equal")
    truth.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8, frameon=False)
    time = range(len(snapshots))
    scores.plot(time, [snapshot.f1 for snapshot in snapshots], marker="o", label="F1 of the region of interest")
    scores.plot(
        time, [snapshot.roi_entropy for snapshot in snapshots], marker="s", label="entropy over the region (bits)"
    )
    scores.set(xlim=(0, max(steps, len(snapshots) - 1, 1)), ylim=(0, 1.02), xlabel="moves", title="quality of the map")
    scores.legend(loc="lower left", fontsize=8)
    scores.grid(alpha=0.3)
    if title:
        figure.suptitle(title)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def _footprint(at: np.ndarray, height: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    half = height * np.tan(FIELD_OF_VIEW / 2)
    return Rectangle((at[0] - half, at[1] - half), 2 * half, 2 * half, fill=False, ec=colour, lw=1.5)
