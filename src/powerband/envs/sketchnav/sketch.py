"""Sketches: a plan as somebody draws it, black walls, a blue dot at the start, a purple one at the goal, a red way.

smooth    every wall, in wobbly strokes, on a page that is a little warped and turned; the way is drawn
abstract  fewer and straight strokes with wider doors, strongly stretched, turned and warped; no way
true      not a sketch: walls, furniture and the way as they are, for comparison
blank     an empty page with neither dots nor walls
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from powerband.nets.sketch_view import GOAL_RGB, START_RGB

from .plan import Plan
from .surfaces import CEILING_M, CELL_M, heights

Level = Literal["smooth", "abstract", "true", "blank"]
LEVELS: tuple[Level, ...] = ("smooth", "abstract", "true", "blank")
PAGE = 512
"""Pixels along a drawn sketch."""
MARGIN = 34
START, GOAL, WAY, INK = START_RGB, GOAL_RGB, (225, 40, 40), (20, 20, 20)
DOT = 13
"""Radius of a dot in pixels."""


class Page:
    """Where a point of the plan comes to lie on the page: stretched, turned, warped, and made to fit.

    Args:
        plan: What is drawn.
        rng: Chances; None draws it straight.
        turn_deg, stretch, warp: Most that the page is turned, stretched along one axis (a factor less 1), and bent (a
            share of its size).
    """

    def __init__(
        self,
        plan: Plan,
        rng: np.random.Generator | None,
        turn_deg: float = 0.0,
        stretch: float = 0.0,
        warp: float = 0.0,
    ) -> None:
        width, height = plan.size_m
        self.centre, self.half = np.array([width, height]) / 2, max(width, height) / 2
        self.matrix, self.waves = np.eye(2), []
        if rng is not None:
            turn = np.deg2rad(rng.uniform(-turn_deg, turn_deg))
            scale = np.exp(rng.uniform(-1, 1, 2) * np.log1p(stretch))
            shear = np.array([[1.0, rng.uniform(-stretch, stretch) / 3], [0.0, 1.0]])
            rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
            self.matrix = rotation @ shear @ np.diag(scale)
            for _ in range(3):
                wave = (rng.uniform(0.4, 1.6, 2) * rng.choice([-1, 1], 2), rng.uniform(0, 2 * np.pi))
                self.waves.append((*wave, rng.uniform(-warp, warp, 2)))
        corners = np.array([(x, y) for x in np.linspace(0, width, 9) for y in np.linspace(0, height, 9)])
        bent = self._bent(corners)
        low, high = bent.min(0), bent.max(0)
        self.scale = (PAGE - 2 * MARGIN) / float((high - low).max())
        self.shift = PAGE / 2 - self.scale * (low + high) / 2

    def _bent(self, points: np.ndarray) -> np.ndarray:
        unit = (points - self.centre) / self.half
        bent = unit @ self.matrix.T
        for direction, phase, size in self.waves:
            bent = bent + np.sin(np.pi * (unit @ direction) + phase)[..., None] * size
        return bent

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """(..., 2) pixels of points (..., 2) in metres."""
        return self._bent(np.asarray(points, np.float64)) * self.scale + self.shift


def draw_sketch(
    plan: Plan,
    start: tuple[float, float],
    goal: tuple[float, float],
    way: np.ndarray,
    level: Level,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draws one page.

    Args:
        plan: The floor plan.
        start, goal: (x, y) in metres.
        way: (L, 2) corners of the way, in metres.
        level: See the top of this file.
        rng: All chances of the hand that draws.

    Returns:
        (512, 512, 3) uint8 RGB.

    Raises:
        ValueError: No such level.
    """
    from PIL import Image, ImageDraw

    if level not in LEVELS:
        raise ValueError(f"level is {level!r}: give one of {', '.join(LEVELS)}")
    image = Image.new("RGB", (PAGE, PAGE), (255, 255, 255))
    if level == "blank":
        return np.asarray(image)
    draw = ImageDraw.Draw(image)
    if level == "true":
        page = Page(plan, None)
        _draw_cells(draw, plan, page)
        _stroke(draw, page(way), WAY, 4)
    elif level == "smooth":
        page = Page(plan, rng, turn_deg=4.0, stretch=0.06, warp=0.02)
        for stroke in plan.walls:
            _stroke(draw, page(_wobbly(stroke.reshape(2, 2), rng, 0.05)), INK, int(rng.integers(4, 7)))
        _stroke(draw, page(_wobbly(_rounded(way), rng, 0.06)), WAY, 4)
    else:
        page = Page(plan, rng, turn_deg=15.0, stretch=0.3, warp=0.06)
        for number, stroke in enumerate(plan.walls):
            ends = stroke.reshape(2, 2).astype(np.float64)
            length = float(np.hypot(*(ends[1] - ends[0])))
            if number >= 4 and (length < 0.5 or rng.random() < 0.2):
                continue
            along = (ends[1] - ends[0]) / max(length, 1e-9)
            cut = 0.0 if number < 4 else min(0.25, length / 4)  # doors are drawn too wide
            ends = ends + np.stack([along * cut, -along * cut]) + rng.normal(0, 0.12, (2, 2))
            _stroke(draw, page(ends), INK, int(rng.integers(5, 9)))
    loose = 0.0 if level == "true" else 0.05 if level == "smooth" else 0.15
    for point, colour in ((start, START), (goal, GOAL)):
        x, y = page(np.asarray(point) + rng.normal(0, 1, 2) * loose)
        draw.ellipse((x - DOT, y - DOT, x + DOT, y + DOT), fill=colour)
    return np.asarray(image)


def shrunk(page: np.ndarray, size: int) -> np.ndarray:
    """(3, size, size) uint8: the page as a sensor sees it, each pixel the mean of those that it covers."""
    from PIL import Image

    image = Image.fromarray(page)
    small = image if page.shape[0] == size else image.resize((size, size), Image.Resampling.BOX)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def read_sketch(path: Path | str) -> np.ndarray:
    """A user's own drawing as (512, 512, 3) uint8.

    Raises:
        ValueError: No such picture, not square, smaller than 64 pixels, or without one of the dots.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(path).convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"sketch {path}: {error}. Give a picture, PNG for instance.") from None
    if image.width != image.height or image.width < 64:
        raise ValueError(
            f"sketch {path} is {image.width} x {image.height} pixels: it has to be square, 512 x 512 at best, and 64 x "
            f"64 at least."
        )
    page = np.asarray(
        image.resize((PAGE, PAGE), Image.Resampling.BOX if image.width > PAGE else Image.Resampling.BICUBIC)
    )
    for name, colour in (("start, a blue", START), ("goal, a purple", GOAL)):
        away = np.abs(page.astype(np.int32) - np.array(colour)).max(-1)
        if int((away < 60).sum()) < 40:
            nearest = page.reshape(-1, 3)[int(away.argmin())]
            raise ValueError(
                f"sketch {path} has no {name} dot of RGB {colour}: the nearest colour found is "
                f"{tuple(int(value) for value in nearest)}. Draw a dot about {2 * DOT} pixels wide on a page of {PAGE}."
            )
    return page


def _draw_cells(draw, plan: Plan, page: Page) -> None:
    stands = heights()[plan.cells]
    for y, x in np.argwhere(stands > 0):
        corners = page(np.array([(x, y), (x + 1, y + 1)]) * CELL_M)
        colour = INK if stands[y, x] >= CEILING_M else (150, 150, 150)
        draw.rectangle((*corners[0], *corners[1]), fill=colour)


def _stroke(draw, points: np.ndarray, colour: tuple[int, int, int], width: int) -> None:
    draw.line([tuple(point) for point in points], fill=colour, width=width, joint="curve")


def _wobbly(points: np.ndarray, rng: np.random.Generator, size_m: float) -> np.ndarray:
    """The line with a point every 0.15 m, each off by a slow random walk of `size_m` metres."""
    points = np.asarray(points, np.float64)
    legs = np.hypot(*np.diff(points, axis=0).T)
    at = np.concatenate([[0.0], np.cumsum(legs)])
    count = max(2, int(at[-1] / 0.15) + 1)
    where = np.linspace(0, at[-1], count)
    line = np.stack([np.interp(where, at, points[:, axis]) for axis in range(2)], 1)
    off, kept = np.zeros(2), []
    for _ in range(count):
        off = 0.8 * off + 0.6 * rng.normal(0, size_m, 2)
        kept.append(off)
    return line + np.array(kept)


def _rounded(way: np.ndarray) -> np.ndarray:
    """Corners cut twice, as a hand does."""
    for _ in range(2):
        if len(way) > 2:
            cut = np.stack([0.75 * way[:-1] + 0.25 * way[1:], 0.25 * way[:-1] + 0.75 * way[1:]], 1).reshape(-1, 2)
            way = np.concatenate([way[:1], cut[1:-1], way[-1:]])
    return way
