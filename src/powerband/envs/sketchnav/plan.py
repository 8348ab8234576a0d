"""Plans: seeded floor plans of rooms, corridors, doors and furniture on a grid of 0.1 m.

A rectangle is split until its rooms are of a size that people build; a large one is split by a corridor first. Doors
join the rooms into a tree and some more of them close loops. Furniture never cuts off a place that could be reached.

Coordinates are (x, y), x to the right and y down, as in the picture of a plan; arrays are indexed [y, x].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .distance import navigable, reachable
from .surfaces import CELL_M, FLOORS, FRAMES, FURNITURE, WALLS

LEAST_M, MOST_M = 8.0, 24.0
WALL = 2
"""Cells that a wall is thick."""
LEAST_ROOM, LARGEST_ROOM = 24, 56
"""Cells along the side of a room: never less; more are split again."""
CORRIDOR = (13, 19)
CORRIDOR_FROM = 100
"""Sides of so many cells get a corridor."""
DOOR = (9, 13)
LOOPS = 0.3
"""Share of the doors that are possible beside the tree, which are made."""
CLEAR = 9
"""Cells around a door that stay free of furniture."""


class Rect(NamedTuple):
    """Cells x0..x1-1, y0..y1-1."""

    x0: int
    y0: int
    x1: int
    y1: int


@dataclass(frozen=True)
class Plan:
    """One floor plan.

    Attributes:
        cells: (H, W) uint8 codes, see `surfaces`.
        walls: (K, 4) float32: x0, y0, x1, y1 in metres, the middle lines of walls from door to door, the four of the
            outside first.
        rooms: Their rectangles, corridors among them.
    """

    cells: np.ndarray
    walls: np.ndarray
    rooms: list[Rect]

    @property
    def size_m(self) -> tuple[float, float]:
        """Width and height."""
        return self.cells.shape[1] * CELL_M, self.cells.shape[0] * CELL_M


class _Line(NamedTuple):
    """The middle of a wall: across at `at`, from `start` to `stop` along the other axis."""

    upright: bool
    at: float
    start: float
    stop: float


def draw_plan(rng: np.random.Generator, least_m: float = LEAST_M, most_m: float = MOST_M) -> Plan:
    """Draws a plan.

    Args:
        rng: All of its chances.
        least_m, most_m: Range of width and height, within 8 to 24 m.

    Raises:
        ValueError: A range that is empty or goes beyond 8 to 24 m.
    """
    if not LEAST_M <= least_m <= most_m <= MOST_M:
        raise ValueError(f"plans of {least_m:g} to {most_m:g} m: give a range within {LEAST_M:g} to {MOST_M:g} m.")
    width, height = (int(round(rng.uniform(least_m, most_m) / CELL_M)) for _ in range(2))
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
    around = [
        _Line(False, half, half, width - half),
        _Line(True, width - half, half, height - half),
        _Line(False, height - half, half, width - half),
        _Line(True, half, half, height - half),
    ]
    strokes = [stroke for line in [*around, *lines] for stroke in _strokes(line, doors)]
    return Plan(cells, np.array(strokes, np.float32) * np.float32(CELL_M), rooms)


def _split(
    rng: np.random.Generator, rect: Rect, rooms: list[Rect], lines: list[_Line], whole: bool
) -> tuple[list[Rect], list[_Line]]:
    """Splits `rect` into rooms, which are added to `rooms`, and the walls between them to `lines`."""
    wide, high = rect.x1 - rect.x0, rect.y1 - rect.y0
    upright = wide >= high if abs(wide - high) > 12 else bool(rng.integers(2))
    corridor = whole and max(wide, high) >= CORRIDOR_FROM
    if corridor:
        upright = wide < high  # it runs along the longer side
    side = wide if upright else high
    if side < 2 * LEAST_ROOM + WALL:
        upright, side = not upright, high if upright else wide
    splittable = side >= 2 * LEAST_ROOM + WALL
    if not splittable or (max(wide, high) <= LARGEST_ROOM and (min(wide, high) < 36 or rng.random() < 0.5)):
        return [*rooms, rect], lines
    passage = int(rng.integers(*CORRIDOR)) if corridor and side >= 2 * LEAST_ROOM + 2 * WALL + CORRIDOR[1] else 0
    taken = WALL + (passage + WALL if passage else 0)
    low, high_ = LEAST_ROOM, side - taken - LEAST_ROOM
    if passage:  # in the middle third: rooms on both sides
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
    """Doors between rooms, as rectangles of wall cells: those of a spanning tree, and some of the others."""
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
    assert len(set(group)) == 1, "rooms of one split always touch"
    return doors


def _open(cells: np.ndarray, door: Rect, frame: int) -> None:
    """Makes the door's cells floor, of the room before it, and the wall at its two ends a frame."""
    x0, y0, x1, y1 = door
    if x1 - x0 == WALL and y1 - y0 != WALL:
        cells[y0:y1, x0:x1] = cells[y0:y1, x0 - 1 : x0]
        cells[[y0 - 1, y1], x0:x1] = frame
    else:
        cells[y0:y1, x0:x1] = cells[y0 - 1 : y0, x0:x1]
        cells[y0:y1, [x0 - 1, x1]] = frame


def _furnish(rng: np.random.Generator, cells: np.ndarray, rooms: list[Rect], doors: list[Rect]) -> None:
    """Puts blocks into the rooms; one that would cut something off is taken out again."""
    kept_free = np.zeros(cells.shape, bool)
    for x0, y0, x1, y1 in doors:
        kept_free[max(0, y0 - CLEAR) : y1 + CLEAR, max(0, x0 - CLEAR) : x1 + CLEAR] = True
    walked = int(reachable(navigable(cells)).sum())
    for room in rooms:
        wide, high = room.x1 - room.x0, room.y1 - room.y0
        if min(wide, high) < LEAST_ROOM:
            continue  # a corridor
        for _ in range(int(rng.integers(0, 2 + wide * high // 700))):
            w, h = int(rng.integers(4, 17)), int(rng.integers(4, 11))
            if rng.integers(2):
                w, h = h, w
            x = int(rng.integers(room.x0, room.x1 - w))
            y = int(rng.integers(room.y0, room.y1 - h))
            side = int(rng.integers(6))  # two thirds stand at a wall
            x = room.x0 if side == 0 else room.x1 - w if side == 1 else x
            y = room.y0 if side == 2 else room.y1 - h if side == 3 else y
            block = (slice(y, y + h), slice(x, x + w))
            if kept_free[block].any() or not np.isin(cells[block], FLOORS).all():
                continue
            before = cells[block].copy()
            cells[block] = rng.choice(FURNITURE)
            free = navigable(cells)
            now = int(reachable(free).sum())
            if now == int(free.sum()) and now > walked // 2:
                walked = now
            else:
                cells[block] = before


def _strokes(line: _Line, doors: list[Rect]) -> list[tuple[float, float, float, float]]:
    """The parts of a wall between its doors, in cells."""
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
    kept = [(low, high) for low, high in parts if high > low]
    if line.upright:
        return [(line.at, low, line.at, high) for low, high in kept]
    return [(low, line.at, high, line.at) for low, high in kept]
