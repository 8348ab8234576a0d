"""Sketch: draws a plan as a person does, with black walls, a blue start dot, a purple goal dot and a red path.

A sketch has one of five levels of abstraction:

smooth    all walls as wobbly strokes, on a page that is slightly warped and rotated, with the path
varied    the same with pens of all widths and colours, walls of one or two lines, and pages that are turned, stretched
          and shaded more, so that a policy does not learn the hand of one program
abstract  fewer, straight strokes with wider doors, strongly stretched, rotated and warped, without the path
true      not a sketch but the exact walls, furniture and path, for comparison
blank     an empty page without dots and walls
"""

from __future__ import annotations

import io
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.cell_codes import CEILING_M, CELL_M, heights
from powerband.recipes.sketchnav.plans.imported.pictures import on_white
from powerband.recipes.sketchnav.plans.plan import Plan
from powerband.recipes.sketchnav.settings import LEVELS, MARGIN_PX, PAGE_PX, Level

START_RGB, GOAL_RGB = (30, 80, 230), (150, 40, 190)
"""Colours of the dots at the start and the goal, which users draw, too."""
PATH_RGB, INK_RGB, FURNITURE_RGB = (225, 40, 40), (20, 20, 20), (150, 150, 150)
DOT_PX = 13
"""Radius of a dot in pixels."""
MIN_SKETCH_PX, MAX_SKETCH_PX = 64, 8192
"""Smallest and largest side of a user's sketch in pixels."""
DOT_TOLERANCE, MIN_DOT_PIXELS = 60, 40
"""Difference in one channel up to which a pixel belongs to a dot, and the number of pixels that a dot needs."""


class PageTransform:
    """Transform from points of a plan to points of a page (sketch image).

    It stretches, rotates and warps the plan at random, and scales it to the page.

    Args:
        plan: Floor plan.
        rng: Random generator; None does not distort the plan.
        turn_deg: Largest rotation in degrees.
        stretch: Largest stretch along one axis, as a factor minus 1.
        warp: Largest amplitude of each wave of the warp, as a share of half the longer side of the plan.
        margin_px: Margin around the plan in pixels.
    """

    def __init__(
        self,
        plan: Plan,
        rng: np.random.Generator | None,
        turn_deg: float = 0.0,
        stretch: float = 0.0,
        warp: float = 0.0,
        margin_px: float = MARGIN_PX,
    ) -> None:
        width, height = plan.size_m
        self.centre, self.half = np.array([width, height]) / 2, max(width, height) / 2
        self.matrix = np.eye(2)
        self.waves: list[tuple[np.ndarray, float, np.ndarray]] = []
        if rng is not None:
            turn = np.deg2rad(rng.uniform(-turn_deg, turn_deg))
            scale = np.exp(rng.uniform(-1, 1, 2) * np.log1p(stretch))
            shear = np.array([[1.0, rng.uniform(-stretch, stretch) / 3], [0.0, 1.0]])
            rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
            self.matrix = rotation @ shear @ np.diag(scale)
            for _ in range(3):
                direction, phase = rng.uniform(0.4, 1.6, 2) * rng.choice([-1, 1], 2), rng.uniform(0, 2 * np.pi)
                self.waves.append((direction, phase, rng.uniform(-warp, warp, 2)))
        corners = np.array([(x, y) for x in np.linspace(0, width, 9) for y in np.linspace(0, height, 9)])
        distorted = self._distort(corners)
        low, high = distorted.min(0), distorted.max(0)
        self.scale = (PAGE_PX - 2 * margin_px) / float((high - low).max())
        self.shift = PAGE_PX / 2 - self.scale * (low + high) / 2

    def _distort(self, points: np.ndarray) -> np.ndarray:
        """Distorts points (..., 2) in metres; the unit of the result is half the longer side of the plan."""
        unit = (points - self.centre) / self.half
        distorted = unit @ self.matrix.T
        for direction, phase, size in self.waves:
            distorted = distorted + np.sin(np.pi * (unit @ direction) + phase)[..., None] * size
        return distorted

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Transforms points (..., 2) in metres to pixels (..., 2)."""
        return self._distort(np.asarray(points, np.float64)) * self.scale + self.shift


def draw_sketch(
    plan: Plan,
    start: np.ndarray,
    goal: np.ndarray,
    path: np.ndarray,
    level: Level,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draws the sketch of one episode.

    Args:
        plan: Floor plan.
        start: Position (2,) of the start in metres.
        goal: Position (2,) of the goal in metres.
        path: The L corners (L, 2) of the shortest path in metres.
        level: Level of abstraction: ``smooth``, ``varied``, ``abstract``, ``true`` (the plan itself) or ``blank``.
        rng: Random generator of all distortions.

    Returns:
        Image of the sketch (512, 512, 3) uint8 RGB.

    Raises:
        ConfigError: The level is unknown.
    """
    from PIL import Image, ImageDraw

    if level not in LEVELS:
        raise ConfigError(f"Unknown level {level!r} of a sketch. Available: {', '.join(LEVELS)}.")
    image = Image.new("RGB", (PAGE_PX, PAGE_PX), (255, 255, 255))
    if level == "blank":
        return np.asarray(image)
    draw = ImageDraw.Draw(image)
    if level == "true":
        page = PageTransform(plan, None)
        _draw_cells(draw, plan, page)
        _stroke(draw, page(path), PATH_RGB, 4)
    elif level == "smooth":
        page = PageTransform(plan, rng, turn_deg=4.0, stretch=0.06, warp=0.02)
        for wall in plan.walls:
            _stroke(draw, page(_wobble(wall.reshape(2, 2), rng, 0.05)), INK_RGB, int(rng.integers(4, 7)))
        _stroke(draw, page(_wobble(_round_corners(path), rng, 0.06)), PATH_RGB, 4)
    elif level == "varied":
        margin_px = rng.uniform(0.5, 2.0) * MARGIN_PX
        page = PageTransform(plan, rng, turn_deg=10.0, stretch=0.15, warp=0.02, margin_px=margin_px)
        _draw_varied(draw, plan, path, page, rng)
    else:
        page = PageTransform(plan, rng, turn_deg=15.0, stretch=0.3, warp=0.06)
        for number, wall in enumerate(plan.walls):
            ends = wall.reshape(2, 2).astype(np.float64)
            length = float(np.hypot(*(ends[1] - ends[0])))
            if number >= 4 and (length < 0.5 or rng.random() < 0.2):
                continue
            along = (ends[1] - ends[0]) / max(length, 1e-9)
            cut = 0.0 if number < 4 else min(0.25, length / 4)  # makes doors too wide
            ends = ends + np.stack([along * cut, -along * cut]) + rng.normal(0, 0.12, (2, 2))
            _stroke(draw, page(ends), INK_RGB, int(rng.integers(5, 9)))
    deviation_m = 0.0 if level == "true" else 0.15 if level == "abstract" else 0.05
    for point, colour in ((start, START_RGB), (goal, GOAL_RGB)):
        x, y = page(np.asarray(point) + rng.normal(0, 1, 2) * deviation_m)
        draw.ellipse((x - DOT_PX, y - DOT_PX, x + DOT_PX, y + DOT_PX), fill=colour)
    if level == "varied":  # the brightness of the paper
        return (np.asarray(image) * rng.uniform(0.92, 1.0)).astype(np.uint8)
    return np.asarray(image)


def _draw_varied(draw: Any, plan: Plan, path: np.ndarray, page: PageTransform, rng: np.random.Generator) -> None:
    """Draws walls and path with one pen, hand and style of walls, which are drawn at random for the page.

    Args:
        draw: PIL drawing.
        plan: Floor plan.
        path: The L corners (L, 2) of the shortest path in metres.
        page: Transform to the page.
        rng: Random generator.
    """
    ink, width, unsteady_m = _near((50, 50, 50), 50, rng), rng.uniform(1.5, 9.0), rng.uniform(0.01, 0.07)
    half_m = rng.uniform(0.04, 0.12)
    sides_m = (0.0,) if rng.random() < 0.5 else (-half_m, half_m)
    for wall in plan.walls:
        ends = wall.reshape(2, 2).astype(np.float64)
        along = (ends[1] - ends[0]) / max(float(np.hypot(*(ends[1] - ends[0]))), 1e-9)
        for side_m in sides_m:
            longer = np.stack([-along, along]) * rng.uniform(-0.05, 0.1, (2, 1))
            line = ends + longer + side_m * np.array([-along[1], along[0]]) + rng.normal(0, unsteady_m / 2, (2, 2))
            _stroke(draw, page(_wobble(line, rng, unsteady_m)), ink, max(1, round(width * rng.uniform(0.8, 1.2))))
    line = _wobble(_round_corners(path), rng, rng.uniform(0.02, 0.08))
    _stroke(draw, page(line), _near(PATH_RGB, 25, rng), int(rng.integers(2, 8)))


def _near(colour: tuple[int, int, int], most: int, rng: np.random.Generator) -> tuple[int, int, int]:
    """Returns a colour that differs by at most `most` in each channel."""
    red, green, blue = (int(np.clip(value + rng.integers(-most, most + 1), 0, 255)) for value in colour)
    return red, green, blue


def downsample_page(page: np.ndarray, size: int) -> np.ndarray:
    """Scales a page (sketch image) down to the size that the policy observes.

    Args:
        page: Image (512, 512, 3) uint8.
        size: Side of the result in pixels.

    Returns:
        Image (3, size, size) uint8, in which each pixel is the mean of the pixels that it covers.
    """
    from PIL import Image

    image = Image.fromarray(page)
    small = image if page.shape[0] == size else image.resize((size, size), Image.Resampling.BOX)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def read_sketch(path: Path | str, content: bytes | None = None) -> np.ndarray:
    """Reads a user's drawing as a sketch image (512, 512, 3) uint8. Transparent pixels become white.

    Args:
        path: File, or the name of the drawing in messages if `content` is given.
        content: Content of the image file; None reads the file.

    Raises:
        ConfigError: The file is not an image, not square, smaller than 64 or larger than 8,192 pixels, or lacks the dot
            of the start or the goal.
    """
    from PIL import Image, UnidentifiedImageError

    file = path if content is None else io.BytesIO(content)
    try:
        picture = Image.open(file)
        if max(picture.size) > MAX_SKETCH_PX:  # before it is decoded
            raise ConfigError(
                f"sketch {path} is {picture.width:,} x {picture.height:,} pixels; the limit is {MAX_SKETCH_PX:,}. "
                f"Scale it down to {PAGE_PX} x {PAGE_PX}."
            )
        image = on_white(picture).convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ConfigError(f"sketch {path}: {error}. Use an image file, such as a PNG.") from None
    if image.width != image.height or image.width < MIN_SKETCH_PX:
        raise ConfigError(
            f"sketch {path} is {image.width} x {image.height} pixels. It must be square, with {MIN_SKETCH_PX} x "
            f"{MIN_SKETCH_PX} pixels or more; {PAGE_PX} x {PAGE_PX} is best."
        )
    page = np.asarray(
        image.resize((PAGE_PX, PAGE_PX), Image.Resampling.BOX if image.width > PAGE_PX else Image.Resampling.BICUBIC)
    )
    for name, colour in (("blue start", START_RGB), ("purple goal", GOAL_RGB)):
        difference = np.abs(page.astype(np.int32) - np.array(colour)).max(-1)
        if int((difference < DOT_TOLERANCE).sum()) < MIN_DOT_PIXELS:
            nearest = page.reshape(-1, 3)[int(difference.argmin())]
            raise ConfigError(
                f"sketch {path} has no {name} dot of RGB {colour}: its nearest colour is "
                f"{tuple(int(value) for value in nearest)}. Draw a dot {2 * DOT_PX} pixels wide on a page of {PAGE_PX}."
            )
    return page


def _draw_cells(draw: Any, plan: Plan, page: PageTransform) -> None:
    """Draws walls and furniture cell by cell onto a PIL drawing, without the distortions of a sketch."""
    metres = heights()[plan.cells]
    for y, x in np.argwhere(metres > 0):
        corners = page(np.array([(x, y), (x + 1, y + 1)]) * CELL_M)
        colour = INK_RGB if metres[y, x] >= CEILING_M else FURNITURE_RGB
        draw.rectangle((*corners[0], *corners[1]), fill=colour)


def _stroke(draw: Any, points: np.ndarray, colour: tuple[int, int, int], width: int) -> None:
    draw.line([tuple(point) for point in points.tolist()], fill=colour, width=width, joint="curve")


def _wobble(points: np.ndarray, rng: np.random.Generator, size_m: float) -> np.ndarray:
    """Returns a line as drawn by an unsteady hand, with a point every 0.15 m.

    Args:
        points: Corners (n, 2) of the line in metres.
        rng: Random generator.
        size_m: Standard deviation of the displacements in metres. Neighbouring points have similar displacements.
    """
    points = np.asarray(points, np.float64)
    legs = np.hypot(*np.diff(points, axis=0).T)
    at = np.concatenate([[0.0], np.cumsum(legs)])
    count = max(2, int(at[-1] / 0.15) + 1)
    positions = np.linspace(0, at[-1], count)
    line = np.stack([np.interp(positions, at, points[:, axis]) for axis in range(2)], 1)
    changes = 0.6 * rng.normal(0, size_m, (count, 2))
    # Python floats, because a loop over arrays of two numbers takes several times as long.
    offsets = [list(accumulate(column, lambda offset, change: 0.8 * offset + change)) for column in changes.T.tolist()]
    return line + np.stack(offsets, 1)


def _round_corners(path: np.ndarray) -> np.ndarray:
    """Returns a path (n, 2) with its corners cut twice, as a person draws it."""
    for _ in range(2):
        if len(path) > 2:
            cut = np.stack([0.75 * path[:-1] + 0.25 * path[1:], 0.25 * path[:-1] + 0.75 * path[1:]], 1).reshape(-1, 2)
            path = np.concatenate([path[:1], cut[1:-1], path[-1:]])
    return path
