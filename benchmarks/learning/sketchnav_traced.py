"""Sketches of another drawing program: traces the walls in pictures of unseen plans, and evaluates policies with them.

The generator of sketchnav (`recipes/sketchnav/plans/sketch.py`) draws the centre lines of walls, which it knows, with
PIL. This program knows only the pixels of a plan. It draws their outlines edge by edge with matplotlib, as a person
traces a plan: edges bend, overshoot and miss each other, pens differ, and the page is a photograph of paper, turned
and seen from an angle. No policy was trained with such pages.

    python benchmarks/learning/sketchnav_traced.py draw --folder runs/traced
    python benchmarks/learning/sketchnav_traced.py evaluate --folder runs/traced --set path \
        --runs runs/learning/sketchnav-reward-smooth-0 --json benchmarks/results/learning/scores/sketchnav-traced.json

The set ``path`` has turned pages with the drawn path, for policies that were trained with smooth sketches. The set
``level`` is the same on pages that are no more turned and stretched than those of the generator, so that the difference
of the two is the effect of the page, and the rest that of the pen. The set ``map`` has no path, is turned and stretched
more, and lacks the inner walls of one or two areas, for policies that were trained with abstract sketches. The drawings
depend on the seed only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import contourpy
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from scipy.interpolate import splev, splprep
from scipy.ndimage import gaussian_filter

from powerband.cli.catalogue import configure
from powerband.core.machine.device import host_facts
from powerband.recipes.sketchnav.evaluation.episodes import spread_episodes
from powerband.recipes.sketchnav.plans.cell_codes import CEILING_M, CELL_M, heights
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, Episodes
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes
from powerband.recipes.sketchnav.plans.sketch import GOAL_RGB, START_RGB
from powerband.recipes.sketchnav.settings import MARGIN_PX
from powerband.recipes.sketchnav.settings import PAGE_PX as SKETCH_PX

SPLIT, COUNT, PAGE_PX, DPI = "val_unseen", 100, 640, 100
PENS = ("#141414", "#26262e", "#3a3a3a", "#1c2a52", "#40342a")


@dataclass(frozen=True)
class Style:
    """How a set is drawn.

    Attributes:
        path: Whether the path is drawn.
        turn_deg: Largest rotation of the page.
        stretch: Standard deviation of the logarithm of the stretch along each axis.
        missing: Largest number of areas without inner walls.
        jitter_m: Standard deviation of the ends of an edge.
        tilt: Standard deviation of the two slopes of the page, seen from the camera.
        margin: Smallest and largest margin as shares of the page.
    """

    path: bool
    turn_deg: float
    stretch: float
    missing: int
    jitter_m: float
    tilt: float
    margin: tuple[float, float]


STYLES = {
    "path": Style(True, 8.0, 0.05, 0, 0.04, 0.05, (0.06, 0.1)),
    "level": Style(True, 4.0, 0.03, 0, 0.04, 0.0, (MARGIN_PX / SKETCH_PX, MARGIN_PX / SKETCH_PX)),
    "map": Style(False, 15.0, 0.12, 2, 0.08, 0.05, (0.06, 0.1)),
}


def outlines(walls: np.ndarray) -> list[np.ndarray]:
    """Returns the outlines of the walls (H, W) bool of a plan, polygons (n, 2) in metres with straight edges."""
    padded = np.pad(walls.astype(float), 2)
    lines = contourpy.contour_generator(z=gaussian_filter(padded, 0.6)).lines(0.5)
    return [_simplified((np.asarray(line) - 1.5) * CELL_M, 0.08) for line in lines]


def _simplified(points: np.ndarray, tolerance: float) -> np.ndarray:
    """Returns a line without the points that lie within `tolerance` of a simpler one (Douglas and Peucker)."""
    if len(points) < 3:
        return points
    chord = points[-1] - points[0]
    length = np.hypot(*chord)
    offset = points - points[0]
    if length < 1e-9:  # a closed line
        distance = np.hypot(*offset.T)
    else:
        distance = np.abs(chord[0] * offset[:, 1] - chord[1] * offset[:, 0]) / length
    farthest = int(distance.argmax())
    if distance[farthest] <= tolerance:
        return points[[0, -1]]
    first, second = _simplified(points[: farthest + 1], tolerance), _simplified(points[farthest:], tolerance)
    return np.concatenate([first[:-1], second])


class Paper:
    """A photographed page: turns, stretches and tilts a plan, and scales it to the page.

    Args:
        size: Width and height of the plan in metres.
        style: How the set is drawn.
        rng: Random generator.
    """

    def __init__(self, size: np.ndarray, style: Style, rng: np.random.Generator) -> None:
        self.centre, self.unit = size / 2, size.max() / 2
        turn = np.deg2rad(rng.uniform(-style.turn_deg, style.turn_deg))
        rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        self.matrix, self.tilt = (
            rotation @ np.diag(np.exp(rng.normal(0, style.stretch, 2))),
            rng.normal(0, style.tilt, 2),
        )
        corners = self._tilted(np.array([(x, y) for x in (0.0, size[0]) for y in (0.0, size[1])]))
        low, high = corners.min(0), corners.max(0)
        margin = rng.uniform(*style.margin) * PAGE_PX
        self.scale = (PAGE_PX - 2 * margin) / (high - low).max()
        self.shift = PAGE_PX / 2 - self.scale * (low + high) / 2

    def _tilted(self, points: np.ndarray) -> np.ndarray:
        turned = (points - self.centre) / self.unit @ self.matrix.T
        return turned / (1 + turned @ self.tilt)[..., None]

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Transforms points (..., 2) in metres to pixels (..., 2)."""
        return self._tilted(np.asarray(points, float)) * self.scale + self.shift


def edge(ends: np.ndarray, style: Style, rng: np.random.Generator) -> np.ndarray:
    """Returns one edge (20, 2) in metres as a hand draws it from corner to corner, `ends` (2, 2)."""
    along = ends[1] - ends[0]
    length = float(np.hypot(*along))
    along = along / max(length, 1e-9)
    ends = ends + rng.normal(0, style.jitter_m, (2, 2)) + np.outer([-1, 1], along) * rng.uniform(-0.02, 0.08, (2, 1))
    share = np.linspace(0, 1, 20)[:, None]
    bow = np.array([-along[1], along[0]]) * rng.normal(0, 0.012) * length
    tremor = gaussian_filter(rng.normal(0, 0.03, (20, 2)), (2, 0))
    return ends[0] + share * (ends[1] - ends[0]) + 4 * share * (1 - share) * bow + tremor


def traced_path(corners: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns the path with the corners (L, 2) in metres as a hand draws it, (n, 2): smooth and not exact."""
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(corners, axis=0).T))])
    at = np.linspace(0, along[-1], max(5, int(along[-1] / 0.2)))
    points = np.stack([np.interp(at, along, corners[:, axis]) for axis in (0, 1)], 1)
    points[1:-1] += gaussian_filter(rng.normal(0, 0.15, points.shape), (2, 0))[1:-1]
    spline, _ = splprep(points.T, s=len(points) * 0.05**2)
    return np.stack(splev(np.linspace(0, 1, 4 * len(points)), spline), 1)


def drawing(episodes: Episodes, number: int, style: Style, seed: int) -> np.ndarray:
    """Draws the page (PAGE_PX, PAGE_PX, 3) uint8 of an episode."""
    rng = np.random.default_rng([seed, number, style.path])
    cells = episodes.plan_cells(int(episodes.plan[number]))
    walls = heights()[cells] >= CEILING_M
    start, goal = (each.numpy()[:2] * COORDINATE_UNIT_M for each in (episodes.start[number], episodes.target[number]))
    for _ in range(int(rng.integers(0, style.missing + 1))):
        _erase(walls, (start, goal), rng)
    paper = Paper(np.array(walls.shape[::-1]) * CELL_M, style, rng)
    figure = plt.figure(figsize=(PAGE_PX / DPI, PAGE_PX / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, PAGE_PX), ylim=(PAGE_PX, 0))
    axes.axis("off")
    pen, width = str(rng.choice(PENS)), rng.uniform(1.2, 2.6)
    for line in outlines(walls):
        for corners in zip(line[:-1], line[1:], strict=True):
            if np.hypot(*(corners[1] - corners[0])) < 0.15 and rng.random() < 0.5:
                continue
            points = paper(edge(np.array(corners), style, rng))
            axes.plot(*points.T, color=pen, linewidth=width * rng.uniform(0.8, 1.2), alpha=rng.uniform(0.8, 1.0))
    if style.path:
        line = traced_path(episodes.path_corners(number), rng)
        axes.plot(
            *paper(line).T, color=str(rng.choice(["#d8322a", "#e12f2f", "#c8402f"])), linewidth=rng.uniform(1.6, 3)
        )
    for point, colour in ((start, START_RGB), (goal, GOAL_RGB)):
        at = paper(point + rng.normal(0, style.jitter_m, 2))
        axes.plot(*at, "o", color=np.array(colour) / 255, markersize=rng.uniform(16, 22), markeredgewidth=0)
    figure.canvas.draw()
    page = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(float)
    plt.close(figure)
    across, down = np.meshgrid(np.linspace(-1, 1, PAGE_PX), np.linspace(-1, 1, PAGE_PX))
    light = rng.uniform(0.97, 1.0) - 0.015 * (1 + across * rng.uniform(-1, 1) + down * rng.uniform(-1, 1))
    return np.clip(page * light[..., None] + rng.normal(0, 2.0, page.shape), 0, 255).astype(np.uint8)


def _erase(walls: np.ndarray, keep: tuple[np.ndarray, ...], rng: np.random.Generator) -> None:
    """Erases the inner walls of an area of 2.5 to 4 m that is at least 1 m away from the points `keep` in metres."""
    size = (rng.uniform(2.5, 4.0, 2) / CELL_M).astype(int)
    for _ in range(20):
        row, column = (int(rng.integers(4, max(5, walls.shape[axis] - size[axis] - 4))) for axis in (0, 1))
        low = np.array([column, row]) * CELL_M - 1.0
        high = np.array([column + size[1], row + size[0]]) * CELL_M + 1.0
        if not any(((low < point) & (point < high)).all() for point in keep):
            walls[row : min(row + size[0], walls.shape[0] - 4), column : min(column + size[1], walls.shape[1] - 4)] = (
                False
            )
            return


def draw(folder: Path, seed: int) -> None:
    """Draws all sets into folders named after them."""
    config: Any = configure("sketchnav", ["variant=small", "scene_seed=0"])[2].config
    episodes = load_episodes(config, SPLIT, sketch="blank")
    numbers = spread_episodes(COUNT, len(episodes))
    assert numbers is not None
    for name, style in STYLES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in numbers.tolist():
            Image.fromarray(drawing(episodes, number, style, seed)).save(folder / name / f"{number}.png")
        print(f"{len(numbers)} drawings in {folder / name}")


def evaluate(folder: Path, name: str, runs: list[Path], file: Path) -> None:
    """Evaluates runs with the drawings of a set and with the generated sketches of the same episodes.

    The rows are added to a JSON file; those of a drawing have the name of its set, the others ``generated``.
    """
    found = json.loads(file.read_text()) if file.exists() else {"rows": []}
    for run in runs:
        command = [sys.executable, "-m", "powerband", "eval", str(run), f"splits={SPLIT}", "video=false", "threads=1"]
        for pages, words in ((name, f"drawings={folder / name}"), ("generated", f"episodes={COUNT}")):
            subprocess.run([*command, words, "policies=policy,likeliest"], check=True)
            rows = json.loads((run / "eval-sketchnav.json").read_text())["rows"]
            found["rows"] = [each for each in found["rows"] if (each["run"], each["pages"]) != (run.name, pages)]
            found["rows"] += [{"run": run.name, "pages": pages, **row} for row in rows]
            found |= {"host": host_facts(), "drawings": f"{COUNT} episodes of {SPLIT}, seed 0"}
            file.write_text(json.dumps(found) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["draw", "evaluate"])
    parser.add_argument("--folder", type=Path, required=True, help="folder of the drawings")
    parser.add_argument("--set", choices=STYLES, default="path")
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.command == "draw":
        draw(options.folder, options.seed)
    else:
        evaluate(options.folder, options.set, options.runs, options.json)


if __name__ == "__main__":
    main()
