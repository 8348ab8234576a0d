"""Outlines: finds the straight lines along the walls of a grid, which a sketch of an imported plan draws."""

from __future__ import annotations

import numpy as np

from powerband.recipes.sketchnav.plans.cell_codes import CELL_M

TOLERANCE = 1.2
"""Largest distance, in cells, of the outline of a wall from its line."""
MIN_OUTLINE = 6
"""Outlines with fewer sides of cells are not drawn: single occupied cells of a noisy map."""


def wall_lines(floor: np.ndarray) -> np.ndarray:
    """Returns lines along the border of the floor, the longest first.

    Args:
        floor: Cells (H rows, W columns) bool that belong to the floor; none at the rim.

    Returns:
        Lines (K, 4) float32: x0, y0, x1, y1 in metres.
    """
    lines = []
    for outline in _outlines(floor):
        if len(outline) < MIN_OUTLINE:
            continue
        points = outline.astype(np.float64)
        far = int(np.abs(points - points[0]).sum(1).argmax())  # a closed outline is simplified in two halves
        closed = np.concatenate([points, points[:1]])
        for half in (closed[: far + 1], closed[far:]):
            kept = half[_simplified(half)]
            lines.append(np.concatenate([kept[:-1], kept[1:]], 1))
    found = np.concatenate(lines)
    order = np.argsort(-np.hypot(found[:, 2] - found[:, 0], found[:, 3] - found[:, 1]), kind="stable")
    return (found[order] * CELL_M).astype(np.float32)


def _outlines(floor: np.ndarray) -> list[np.ndarray]:
    """Returns the closed outlines of the floor, each as corners (n, 2) of cells, with the floor on the right."""
    follow: dict[tuple[int, int], list[tuple[int, int]]] = {}
    padded = np.pad(floor, 1)
    for (dy, dx), begin, end in (
        ((-1, 0), (0, 0), (1, 0)),  # the cell above is no floor: its lower side, from left to right
        ((0, 1), (1, 0), (1, 1)),
        ((1, 0), (1, 1), (0, 1)),
        ((0, -1), (0, 1), (0, 0)),
    ):
        height, width = floor.shape
        neighbour = padded[1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]
        for y, x in np.argwhere(floor & ~neighbour).tolist():
            follow.setdefault((x + begin[0], y + begin[1]), []).append((x + end[0], y + end[1]))
    outlines = []
    while follow:
        first = next(iter(follow))
        corner, outline = first, []
        while True:
            outline.append(corner)
            targets = follow[corner]
            following = targets.pop()
            if not targets:
                del follow[corner]
            corner = following
            if corner == first:
                break
        outlines.append(np.array(outline))
    return outlines


def _simplified(points: np.ndarray) -> np.ndarray:
    """Returns the indices of the corners (n, 2) that a line keeps within the tolerance.

    Source: Ramer 1972, Douglas and Peucker 1973.
    """
    keep = np.zeros(len(points), bool)
    keep[[0, -1]] = True
    stack = [(0, len(points) - 1)]
    while stack:
        low, high = stack.pop()
        if high - low < 2:
            continue
        start, along = points[low], points[high] - points[low]
        offset = points[low + 1 : high] - start
        length = float(np.hypot(*along))
        away = np.abs(offset[:, 0] * along[1] - offset[:, 1] * along[0]) / length if length else np.hypot(*offset.T)
        farthest = int(away.argmax())
        if away[farthest] > TOLERANCE:
            middle = low + 1 + farthest
            keep[middle] = True
            stack += [(low, middle), (middle, high)]
    return np.flatnonzero(keep)
