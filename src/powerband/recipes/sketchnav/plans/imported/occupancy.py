"""Occupancy: turns the walls of a picture into a floor plan of cells, or says why they are not one."""

from __future__ import annotations

import numpy as np

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.cell_codes import CELL_M, FLOORS, WALLS
from powerband.recipes.sketchnav.plans.distance import REACH, covered, largest_component, navigable
from powerband.recipes.sketchnav.plans.imported.outlines import wall_lines
from powerband.recipes.sketchnav.plans.plan import WALL, Plan

MIN_SIDE_M, MAX_SIDE_M = 2.0, 60.0
"""Range of the width and height of an imported plan."""
MIN_AREA_M2 = 4.0
"""Smallest area, in square metres, in which the agent's centre can be."""
MIN_INSIDE_SHARE = 0.1
"""An area inside that is smaller than this share of the area outside is a room without a door, not a building."""
MAX_SECOND_SHARE = 0.25
"""A second area that is larger than this share of the largest one is another floor."""


def walls_to_cells(walls: np.ndarray, pixel_m: float, name: str) -> np.ndarray:
    """Reduces a picture to cells of 0.1 m. A cell is a wall if one of its pixels is.

    Args:
        walls: Pixels (height, width) bool.
        pixel_m: Side of a pixel in metres.
        name: Name of the file, for messages.

    Returns:
        Cells (H, W) bool.

    Raises:
        ConfigError: The plan is smaller than 2 m or larger than 60 m.
    """
    sides = [side * pixel_m for side in walls.shape]
    if min(sides) < MIN_SIDE_M or max(sides) > MAX_SIDE_M:
        raise ConfigError(
            f"{name} is {sides[1]:.4g} x {sides[0]:.4g} m large at {pixel_m:g} metres per pixel; the range is "
            f"{MIN_SIDE_M:g} to {MAX_SIDE_M:g} m. Correct metres_per_pixel, or cut the picture."
        )
    shape = tuple(max(1, round(side / CELL_M)) for side in sides)
    if pixel_m >= CELL_M:
        rows, columns = (
            np.minimum(((np.arange(n) + 0.5) * CELL_M / pixel_m).astype(int), side - 1)
            for n, side in zip(shape, walls.shape, strict=True)
        )
        return walls[rows][:, columns]
    cells = np.zeros(shape, bool)
    rows, columns = (
        np.minimum(((np.arange(side) + 0.5) * pixel_m / CELL_M).astype(int), n - 1)
        for n, side in zip(shape, walls.shape, strict=True)
    )
    y, x = np.nonzero(walls)
    cells[rows[y], columns[x]] = True
    return cells


def plan_from_cells(solid: np.ndarray, name: str, number: int = 0) -> tuple[Plan, tuple[int, int]]:
    """Makes a plan of one connected area from occupied cells, with a wall of two cells around it.

    Areas that touch the border of the picture are outside the building, if there is an area inside. Small areas that
    are not connected become walls.

    Args:
        solid: Cells (H, W) bool, True for walls.
        name: Name of the file, for messages.
        number: Number of the plan, which selects its colours.

    Returns:
        The plan, cut to its floor and the wall around it, and its origin: the column and row of `solid` at its upper
        left corner, which may be -2.

    Raises:
        ConfigError: There is no free area, or there are several large ones.
    """
    solid = np.pad(solid, WALL, constant_values=True)
    free = _navigable(solid)
    areas = _components(free)
    inside = [area for area in areas if not _touches_border(area) and _square_metres(area) >= MIN_AREA_M2]
    large = [area for area in areas if _square_metres(area) >= MIN_AREA_M2]
    candidates = inside if inside and inside[0].sum() > MIN_INSIDE_SHARE * large[0].sum() else large
    if not candidates:
        found = _square_metres(areas[0]) if areas else 0.0
        raise ConfigError(
            f"{name} has no free space: the largest connected area for an agent of 0.36 m is {found:.1f} m2, and "
            f"{MIN_AREA_M2:g} m2 are needed. Free space must be white and walls dark. Check metres_per_pixel, too."
        )
    if len(candidates) > 1 and candidates[1].sum() > MAX_SECOND_SHARE * candidates[0].sum():
        sizes = ", ".join(f"{_square_metres(area):.0f}" for area in candidates[:4])
        raise ConfigError(
            f"{name} has separate areas of {sizes} m2: several floors, or rooms whose doors are closed or too "
            f"narrow for an agent of 0.36 m. Save one floor per file, open its doors, and check metres_per_pixel."
        )
    chosen = candidates[0]
    floor = _connected_to(~solid & ~covered(free & ~chosen), chosen)
    (top, bottom), (left, right) = ((side[0] - WALL, side[-1] + WALL + 1) for side in map(np.unique, np.nonzero(floor)))
    floor = floor[top:bottom, left:right]
    cells = np.where(floor, FLOORS[number % len(FLOORS)], WALLS[number % len(WALLS)]).astype(np.uint8)
    return Plan(cells, wall_lines(floor), []), (int(left) - WALL, int(top) - WALL)


def grow_floor(free: np.ndarray) -> np.ndarray:
    """Returns walls (H, W) bool for cells `free` (H, W) bool that the centre of the agent can reach.

    A navigation mesh ends one radius before the walls. The floor is what the agent, a disc, covers.
    """
    return ~covered(free)


def _navigable(solid: np.ndarray) -> np.ndarray:
    """Returns the cells (H, W) bool in which the agent fits, for walls (H, W) bool."""
    return navigable(np.where(solid, WALLS[0], FLOORS[0]).astype(np.uint8))


def _components(free: np.ndarray) -> list[np.ndarray]:
    """Returns the connected sets of at least a square metre, each as cells (H, W) bool, the largest first."""
    found: list[np.ndarray] = []
    rest = free.copy()
    while rest.any():
        area = largest_component(rest)
        if found and _square_metres(area) < 1:
            break
        found.append(area)
        rest &= ~area
    return found


def _touches_border(area: np.ndarray) -> bool:
    """True if the agent touches the wall that was added around the picture from inside `area` (H, W)."""
    edge = WALL + REACH  # the added wall, and the cells next to it in which the agent does not fit
    return int(area.sum()) > int(area[edge + 1 : -edge - 1, edge + 1 : -edge - 1].sum())


def _connected_to(floor: np.ndarray, area: np.ndarray) -> np.ndarray:
    """Returns the cells of `floor` (H, W) that are connected to `area` (H, W)."""
    rest = floor | area
    while True:
        part = largest_component(rest)
        if (part & area).any():
            return part
        rest &= ~part


def _square_metres(area: np.ndarray) -> float:
    return float(area.sum()) * CELL_M**2
