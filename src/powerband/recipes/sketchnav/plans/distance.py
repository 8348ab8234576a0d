"""Distance: finds the navigable cells of a grid and the length of the shortest path from each cell to a goal.

A path connects the centres of cells by 16 moves: straight, diagonal and knight's moves. It is at most 2.7 % longer than
the direct line. Lengths are integers in units of 2 mm, so that they are the same bits on every machine.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from powerband.recipes.sketchnav.plans.cell_codes import CELL_M, heights

RADIUS_M = 0.18
"""Radius of the agent in metres."""
REACH = int(np.ceil(RADIUS_M / CELL_M + 0.5)) - 1
"""Largest number of cells, along one axis, from the centre of the agent to a cell that it touches."""
DISTANCE_UNIT_M = 0.002
"""Unit of a distance in metres."""
BLOCKED = -1
"""Distance of a cell without a path."""
_STRAIGHT, _DIAGONAL, _KNIGHT = 50, 71, 112  # lengths of the moves
_MOVES = np.array(
    [(1, 0, _STRAIGHT), (0, 1, _STRAIGHT), (-1, 0, _STRAIGHT), (0, -1, _STRAIGHT)]
    + [(dx, dy, _DIAGONAL) for dx in (-1, 1) for dy in (-1, 1)]
    + [(sx * a, sy * b, _KNIGHT) for a, b in ((2, 1), (1, 2)) for sx in (-1, 1) for sy in (-1, 1)],
    np.int64,
)
_UNREACHED = 32_767


def navigable(cells: np.ndarray) -> np.ndarray:
    """Returns (H rows, W columns) bool: True if the agent, a disc, fits with its centre at the centre of the cell.

    Args:
        cells: Codes of cells (H, W) uint8: numbers for floor, wall, door frame or furniture.
    """
    return ~_within_radius(np.pad(heights()[cells] > 0, REACH, constant_values=True))


def covered(centres: np.ndarray) -> np.ndarray:
    """Returns the cells (H rows, W columns) bool that the agent, a disc, touches from centres (H, W) bool of cells."""
    return _within_radius(np.pad(centres, REACH))


def _within_radius(padded: np.ndarray) -> np.ndarray:
    """Returns (H, W) bool: True where a cell of `padded` (H + 2 REACH, W + 2 REACH) is nearer than the radius."""
    height, width = (side - 2 * REACH for side in padded.shape)
    hit = np.zeros((height, width), bool)
    for dy in range(-REACH, REACH + 1):
        for dx in range(-REACH, REACH + 1):
            away = np.hypot(max(abs(dx) - 0.5, 0.0), max(abs(dy) - 0.5, 0.0)) * CELL_M
            if away < RADIUS_M:
                hit |= padded[REACH + dy : REACH + dy + height, REACH + dx : REACH + dx + width]
    return hit


@njit(cache=True, nogil=True)
def largest_component(free: np.ndarray) -> np.ndarray:
    """Returns the largest connected set of free cells.

    Args:
        free: Free cells (H rows, W columns) bool. Neighbours share a side.

    Returns:
        (H, W) bool: True in the cells of the largest set.
    """
    height, width = free.shape
    part = np.zeros((height, width), np.int32)
    stack = np.empty(height * width, np.int64)
    best, largest, number = 0, 0, 0
    for first in range(height * width):
        if not free[first // width, first % width] or part[first // width, first % width]:
            continue
        number += 1
        part[first // width, first % width] = number
        stack[0], top, count = first, 1, 0
        while top:
            top -= 1
            y, x = stack[top] // width, stack[top] % width
            count += 1
            for k in range(4):
                ny, nx = y + (k == 0) - (k == 1), x + (k == 2) - (k == 3)
                if 0 <= ny < height and 0 <= nx < width and free[ny, nx] and not part[ny, nx]:
                    part[ny, nx] = number
                    stack[top] = ny * width + nx
                    top += 1
        if count > largest:
            best, largest = number, count
    return (part == best) & free


@njit(cache=True, nogil=True)
def _is_open(free, x, y, dx, dy):
    """Returns True if the move from cell (x, y) by (dx, dy) crosses and reaches only cells that are `free` (H, W)."""
    height, width = free.shape
    nx, ny = x + dx, y + dy
    if nx < 0 or ny < 0 or nx >= width or ny >= height or not free[ny, nx]:
        return False
    if dx == 0 or dy == 0:
        return True
    if abs(dx) == abs(dy):
        return free[y, nx] and free[ny, x]
    if abs(dx) == 2:
        return free[y, x + dx // 2] and free[ny, x + dx // 2]
    return free[y + dy // 2, x] and free[y + dy // 2, nx]


@njit(cache=True, nogil=True)
def distance_field(free: np.ndarray, goal_x: int, goal_y: int) -> np.ndarray:
    """Computes the length of the shortest path from each cell to the goal.

    Args:
        free: Navigable cells (H rows, W columns) bool.
        goal_x: Column of the goal, which must be free.
        goal_y: Row of the goal.

    Returns:
        Lengths (H, W) int16 in units of 2 mm; -1 for cells without a path.

    Source: Dial 1969, Dijkstra's algorithm with a ring of buckets.
    """
    height, width = free.shape
    ring = 128
    lengths = np.full((height, width), _UNREACHED, np.int16)
    head = np.full(ring, -1, np.int64)
    after = np.empty(height * width * 17, np.int64)  # a linked list per bucket; each edge adds at most one entry
    cell = np.empty(height * width * 17, np.int64)
    lengths[goal_y, goal_x] = 0
    cell[0], after[0], head[0], used, waiting, length = goal_y * width + goal_x, -1, 0, 1, 1, 0
    while waiting:
        entry = head[length % ring]
        head[length % ring] = -1
        while entry >= 0:
            y, x = cell[entry] // width, cell[entry] % width
            entry = after[entry]
            waiting -= 1
            if lengths[y, x] != length:
                continue
            for k in range(16):
                dx, dy, cost = _MOVES[k, 0], _MOVES[k, 1], _MOVES[k, 2]
                if _is_open(free, x, y, dx, dy) and length + cost < lengths[y + dy, x + dx]:
                    lengths[y + dy, x + dx] = length + cost
                    slot = (length + cost) % ring
                    cell[used], after[used] = (y + dy) * width + x + dx, head[slot]
                    head[slot] = used
                    used += 1
                    waiting += 1
        length += 1
    for y in range(height):
        for x in range(width):
            if lengths[y, x] == _UNREACHED:
                lengths[y, x] = BLOCKED
    return lengths


@njit(cache=True, nogil=True)
def shortest_path(free: np.ndarray, field: np.ndarray, x: int, y: int) -> np.ndarray:
    """Returns the corners of the shortest path from cell (x, y) to the goal.

    Consecutive moves in one direction are joined to one segment.

    Args:
        free: Navigable cells (H rows, W columns) bool.
        field: Path lengths (H, W) to the goal from `distance_field`.
        x: Column of the first cell.
        y: Row of the first cell.

    Returns:
        L corners (L, 2) int64 as (column, row), from the first cell to the goal.
    """
    corners = np.empty((field.size, 2), np.int64)
    corners[0, 0], corners[0, 1], count = x, y, 1
    last_x, last_y = 0, 0
    while field[y, x] > 0:
        step_x, step_y = 0, 0
        for k in range(16):
            dx, dy, cost = _MOVES[k, 0], _MOVES[k, 1], _MOVES[k, 2]
            if _is_open(free, x, y, dx, dy) and field[y + dy, x + dx] == field[y, x] - cost:
                if step_x == 0 and step_y == 0:
                    step_x, step_y = dx, dy
                if dx == last_x and dy == last_y:  # prefer the direction of the last move
                    step_x, step_y = dx, dy
        if (step_x, step_y) == (last_x, last_y):
            count -= 1
        x, y, last_x, last_y = x + step_x, y + step_y, step_x, step_y
        corners[count, 0], corners[count, 1] = x, y
        count += 1
    return corners[:count].copy()
