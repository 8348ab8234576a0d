"""Pictures of a mission: the hidden field with the paths, what all measurements together say, how good that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .env import UavEnv
from .world import AREA_M, FIELD_OF_VIEW, SPACING_M, UNITS

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")


@dataclass(frozen=True)
class Moment:
    """One mission at one time, on the host.

    Attributes:
        truth: (M, M) uint8.
        belief: (M, M) float32: probability of the region of interest, of all measurements.
        position: (A, 3): lattice x, y, altitude index.
        heard: (A,) int: bit j is set where the UAV has heard UAV j.
        f1, roi_entropy: Of the belief.
    """

    truth: np.ndarray
    belief: np.ndarray
    position: np.ndarray
    heard: np.ndarray
    f1: float
    roi_entropy: float

    @classmethod
    def of(cls, env: UavEnv, row: int = 0, score: dict[str, Tensor] | None = None) -> Moment:
        """The mission in row `row` as it is."""
        score, missions = score or env.score(), env.missions
        odds = missions.belief[row, -1].float() / UNITS
        parts = (missions.truth[row], torch.sigmoid(odds), missions.position[row], missions.heard[row])
        return cls(
            *(part.cpu().numpy().copy() for part in parts), float(score["f1"][row]), float(score["roi_entropy"][row])
        )


def draw_mission(
    moments: Sequence[Moment], altitudes_m: Sequence[float], title: str = "", steps: int = 0
) -> np.ndarray:
    """A picture of the last of `moments`, with the way that led there.

    Args:
        moments: From the start on.
        altitudes_m: Altitudes by index.
        title: Above the picture.
        steps: Moves of a whole mission, for the axis of time; 0 is as many as are given.

    Returns:
        (450, 1200, 3) uint8 RGB.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    truth, belief, scores = figure.subplots(1, 3)
    now, edges = moments[-1], (0, AREA_M, 0, AREA_M)
    truth.imshow(now.truth.T, origin="lower", extent=edges, cmap="Greys", vmin=0, vmax=2, interpolation="nearest")
    shown = belief.imshow(now.belief.T, origin="lower", extent=edges, cmap="RdYlBu_r", vmin=0, vmax=1)
    figure.colorbar(shown, ax=belief, fraction=0.045, label="probability of the region of interest")
    truth.set_title("hidden field and paths (width of line: altitude)")
    belief.set_title("what all measurements say")
    way = np.stack([moment.position for moment in moments])
    for i in range(way.shape[1]):
        colour, at = COLOURS[i % len(COLOURS)], SPACING_M * way[:, i, :2]
        for k in range(len(way) - 1):
            truth.plot(*at[k : k + 2].T, color=colour, lw=1 + 1.5 * way[k + 1, i, 2], solid_capstyle="round", alpha=0.8)
        height = altitudes_m[way[-1, i, 2]]
        truth.plot(*at[-1], "o", color=colour, ms=8, mec="black", label=f"UAV {i + 1}, {height:g} m")
        belief.add_patch(_footprint(at[-1], height, colour))
        for j in range(i):
            if now.heard[i] >> j & 1:
                belief.plot(*np.stack([at[-1], SPACING_M * way[-1, j, :2]]).T, color="black", lw=0.8, ls=":")
    for axis in (truth, belief):
        axis.set(xlim=(-3, AREA_M + 3), ylim=(-3, AREA_M + 3), xlabel="x (m)", ylabel="y (m)", aspect="equal")
    truth.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8, frameon=False)
    time = range(len(moments))
    scores.plot(time, [moment.f1 for moment in moments], marker="o", label="F1 of the region of interest")
    scores.plot(time, [moment.roi_entropy for moment in moments], marker="s", label="entropy over it (bits)")
    scores.set(xlim=(0, max(steps, len(moments) - 1, 1)), ylim=(0, 1.02), xlabel="moves", title="how good the map is")
    scores.legend(loc="lower left", fontsize=8)
    scores.grid(alpha=0.3)
    if title:
        figure.suptitle(title)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def _footprint(at: np.ndarray, height: float, colour: str):
    from matplotlib.patches import Rectangle

    half = height * np.tan(FIELD_OF_VIEW / 2)
    return Rectangle((at[0] - half, at[1] - half), 2 * half, 2 * half, fill=False, ec=colour, lw=1.5)
