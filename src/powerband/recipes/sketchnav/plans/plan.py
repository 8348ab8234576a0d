"""Plan: generates floor plans of rooms, corridors, doors and furniture on a grid of 0.1 m from a seed.

A rectangle is split until its rooms have realistic sizes; a large one is first split by a corridor. Doors connect the
rooms to a tree, and some more doors close loops. Furniture never blocks the path to a place.

Coordinates are (x, y), x to the right and y down, as in the image of a plan; arrays are indexed [y, x].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.cell_codes import CELL_M, FLOORS, FRAMES, FURNITURE, WALLS
from powerband.recipes.sketchnav.plans.distance import largest_component, navigable
from powerband.recipes.sketchnav.settings import MAX_SIZE_M, MIN_SIZE_M

WALL = 2
"""Thickness of a wall in cells."""
MIN_ROOM, MAX_ROOM = 24, 56
"""Smallest side of a room in cells, and the side from which a room is split again."""
CORRIDOR = (13, 19)
"""Range of the width of a corridor in cells, upper end exclusive."""
CORRIDOR_FROM = 100
"""Length of the longer side, in cells, from which a plan has a corridor."""
DOOR = (9, 13)
"""Range of the width of a door in cells, upper end exclusive."""
LOOPS = 0.3
"""Share of the possible doors that are opened in addition to those that connect the rooms to a tree."""
CLEAR = 9
"""Distance from a door, in cells, within which there is no furniture."""


class Rect(NamedTuple):
    """Rectangle of the cells x0..x1-1, y0..y1-1."""

    x0: int
    y0: int
    x1: int
    y1: int


@dataclass(frozen=True)
class Plan:
    """One floor plan.

    Attributes:
        cells: Codes of cells (H rows, W columns) uint8: numbers for floor, wall, door frame or furniture; see the
            module `cell_codes`.
        walls: Centre lines (x0, y0, x1, y1) of K pieces of wall between doors, (K, 4) float32 in metres. The outer
            walls are the first four.
        rooms: Rectangles of the rooms and corridors, in cells.
    """

    cells: np.ndarray
    walls: np.ndarray
    rooms: list[Rect]

    @property
    def size_m(self) -> tuple[float, float]:
        """Width and height in metres."""
        return self.cells.shape[1] * CELL_M, self.cells.shape[0] * CELL_M


class _Line(NamedTuple):
    """Centre line of a wall, in cells.

    An `upright` line is at x = `at` from y = `start` to `stop`, any other line at y = `at` from x = `start` to `stop`.
    """

    upright: bool
    at: float
    start: float
    stop: float


def generate_plan(rng: np.random.Generator, min_size_m: float = MIN_SIZE_M, max_size_m: float = MAX_SIZE_M) -> Plan:
    """Generates a plan.

    Args:
        rng: Random generator.
        min_size_m: Smallest width and height, 8 m or more.
        max_size_m: Largest width and height, 24 m or less.

    Raises:
        ConfigError: The range is empty or exceeds 8 to 24 m.
    """
    if not MIN_SIZE_M <= min_size_m <= max_size_m <= MAX_SIZE_M:
        raise ConfigError(
            f"min_size_m={min_size_m:g} and max_size_m={max_size_m:g} do not form a range within {MIN_SIZE_M:g} to "
            f"{MAX_SIZE_M:g} m. Pass min_size_m=8, max_size_m=24, for example."
        )
    width, height = (int(round(rng.uniform(min_size_m, max_size_m) / CELL_M)) for _ in range(2))
    outside = Rect(WALL, WALL, width - WALL, height - WALL)
    rooms, lines = _split(rng, outside, [], [], True)
    cells = np.full((height, width), rng.choice(WALLS), np.uint8)
    inner = rng.choice(WALLS)
    cells[WALL:-WALL, WALL:-WALL] = inner
    for room in rooms:
        cells[room.y0 : room.y1, room.x0 : room.x1] = rng.choice(FLOORS)
    doors = _doors(rng, rooms)
    frame = rng.choice(FRAMES)
    for door in doors:
        _open(cells, door, frame)
    _furnish(rng, cells, rooms, doors)
    half = WALL / 2
    outer = [
        _Line(False, half, half, width - half),
        _Line(True, width - half, half, height - half),
        _Line(False, height - half, half, width - half),
        _Line(True, half, half, height - half),
    ]
    segments = [segment for line in [*outer, *lines] for segment in _wall_segments(line, doors)]
    return Plan(cells, np.array(segments, np.float32) * np.float32(CELL_M), rooms)


def _split(
    rng: np.random.Generator, rect: Rect, rooms: list[Rect], lines: list[_Line], is_outermost: bool
) -> tuple[list[Rect], list[_Line]]:
    """Splits a rectangle into rooms, and splits the rooms again until they have realistic sizes.

    Args:
        rng: Random generator.
        rect: Rectangle to split.
        rooms: Rooms so far.
        lines: Walls so far.
        is_outermost: The rectangle is the whole plan, which gets a corridor if it is large.

    Returns:
        `rooms` with the new rooms added, and `lines` with the walls between the new rooms added.
    """
    wide, high = rect.x1 - rect.x0, rect.y1 - rect.y0
    upright = wide >= high if abs(wide - high) > 12 else bool(rng.integers(2))
    corridor = is_outermost and max(wide, high) >= CORRIDOR_FROM
    if corridor:
        upright = wide < high  # a corridor follows the longer side
    side = wide if upright else high
    if side < 2 * MIN_ROOM + WALL:
        upright, side = not upright, high if upright else wide
    splittable = side >= 2 * MIN_ROOM + WALL
    if not splittable or (max(wide, high) <= MAX_ROOM and (min(wide, high) < 36 or rng.random() < 0.5)):
        return [*rooms, rect], lines
    passage = int(rng.integers(*CORRIDOR)) if corridor and side >= 2 * MIN_ROOM + 2 * WALL + CORRIDOR[1] else 0
    used = WALL + (passage + WALL if passage else 0)
    low, high_ = MIN_ROOM, side - used - MIN_ROOM
    if passage:  # in the middle third, so that both sides have rooms
        low, high_ = max(low, side // 3 - passage), min(high_, max(low, 2 * side // 3 - passage))
    cut = int(rng.integers(low, high_ + 1))
    start = (rect.x0 if upright else rect.y0) + cut
    parts = [(start - cut, start)]
    walls = [start]
    if passage:
        parts.append((start + WALL, start + WALL + passage))
        walls.append(start + WALL + passage)
    parts.append((walls[-1] + WALL, (rect.x1 if upright else rect.y1)))
    for wall in walls:
        first, last = (rect.y0, rect.y1) if upright else (rect.x0, rect.x1)
        lines = [*lines, _Line(upright, wall + WALL / 2, first - WALL / 2, last + WALL / 2)]
    for number, (first, last) in enumerate(parts):
        part = Rect(first, rect.y0, last, rect.y1) if upright else Rect(rect.x0, first, rect.x1, last)
        if passage and number == 1:
            rooms = [*rooms, part]
        else:
            rooms, lines = _split(rng, part, rooms, lines, False)
    return rooms, lines


def _doors(rng: np.random.Generator, rooms: list[Rect]) -> list[Rect]:
    """Returns doors between rooms as rectangles of wall cells.

    The doors of a spanning tree connect all rooms; a share of the other possible doors is added.
    """
    possible = []
    for a, first in enumerate(rooms):
        for b, second in enumerate(rooms):
            for upright in (True, False):
                gap = (second.x0 - first.x1) if upright else (second.y0 - first.y1)
                low = max(first.y0, second.y0) if upright else max(first.x0, second.x0)
                high = min(first.y1, second.y1) if upright else min(first.x1, second.x1)
                if gap == WALL and high - low >= DOOR[1] + 4:
                    width = int(rng.integers(*DOOR))
                    at = int(rng.integers(low + 2, high - width - 1))
                    wall = first.x1 if upright else first.y1
                    door = (
                        Rect(wall, at, wall + WALL, at + width) if upright else Rect(at, wall, at + width, wall + WALL)
                    )
                    possible.append((a, b, door))
    group, doors = list(range(len(rooms))), []
    for number in rng.permutation(len(possible)):
        a, b, door = possible[number]
        if group[a] != group[b]:
            group = [group[a] if each == group[b] else each for each in group]
            doors.append(door)
        elif rng.random() < LOOPS:
            doors.append(door)
    assert len(set(group)) == 1, "adjacent rooms of a split always share a wall"
    return doors


def _open(cells: np.ndarray, door: Rect, frame: int) -> None:
    """Replaces the wall cells of a door by floor, and marks both ends of the door.

    Args:
        cells: Cell codes (H rows, W columns) of the plan; changed in place.
        door: Cells of the door. They get the floor of the room to the left or above.
        frame: Cell code of the ends.
    """
    x0, y0, x1, y1 = door
    if x1 - x0 == WALL and y1 - y0 != WALL:
        cells[y0:y1, x0:x1] = cells[y0:y1, x0 - 1 : x0]
        cells[[y0 - 1, y1], x0:x1] = frame
    else:
        cells[y0:y1, x0:x1] = cells[y0 - 1 : y0, x0:x1]
        cells[y0:y1, [x0 - 1, x1]] = frame


def _furnish(rng: np.random.Generator, cells: np.ndarray, rooms: list[Rect], doors: list[Rect]) -> None:
    """Puts blocks of furniture into the rooms; a block that would disconnect free cells is removed again."""
    clear = np.zeros(cells.shape, bool)
    for x0, y0, x1, y1 in doors:
        clear[max(0, y0 - CLEAR) : y1 + CLEAR, max(0, x0 - CLEAR) : x1 + CLEAR] = True
    reachable = int(largest_component(navigable(cells)).sum())
    for room in rooms:
        wide, high = room.x1 - room.x0, room.y1 - room.y0
        if min(wide, high) < MIN_ROOM:
            continue  # a corridor
        for _ in range(int(rng.integers(0, 2 + wide * high // 700))):
            w, h = int(rng.integers(4, 17)), int(rng.integers(4, 11))
            if rng.integers(2):
                w, h = h, w
            x = int(rng.integers(room.x0, room.x1 - w))
            y = int(rng.integers(room.y0, room.y1 - h))
            side = int(rng.integers(6))  # two thirds of the blocks touch a wall
            x = room.x0 if side == 0 else room.x1 - w if side == 1 else x
            y = room.y0 if side == 2 else room.y1 - h if side == 3 else y
            block = (slice(y, y + h), slice(x, x + w))
            if clear[block].any() or not np.isin(cells[block], FLOORS).all():
                continue
            before = cells[block].copy()
            cells[block] = rng.choice(FURNITURE)
            free = navigable(cells)
            left = int(largest_component(free).sum())
            if left == int(free.sum()) and left > reachable // 2:
                reachable = left
            else:
                cells[block] = before


def _wall_segments(line: _Line, doors: list[Rect]) -> list[tuple[float, float, float, float]]:
    """Returns the pieces of a wall between its doors as (x0, y0, x1, y1), in cells."""
    gaps = []
    for x0, y0, x1, y1 in doors:
        across, along = ((x0, x1), (y0, y1)) if line.upright else ((y0, y1), (x0, x1))
        inside = line.start <= along[0] and along[1] <= line.stop
        if across[0] + WALL / 2 == line.at and across[1] - across[0] == WALL and inside:
            gaps.append(along)
    parts, start = [], line.start
    for low, high in sorted(gaps):
        parts.append((start, float(low)))
        start = float(high)
    parts.append((start, line.stop))
    segments = [(low, high) for low, high in parts if high > low]
    if line.upright:
        return [(line.at, low, line.at, high) for low, high in segments]
    return [(low, line.at, high, line.at) for low, high in segments]
