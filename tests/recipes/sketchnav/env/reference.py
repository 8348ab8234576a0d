"""The rules of sketchnav written plainly and slowly: pictures by numpy, ways by a heap, moves in floats."""

from __future__ import annotations

import heapq
import math

import numpy as np

from powerband.recipes.sketchnav.plans.cell_codes import CEILING_M, CELL_M, NUM_CODES, colours, heights

CAMERA_M, RADIUS_M, FIELD = 0.88, 0.18, math.radians(79)


def picture(cells: np.ndarray, x: float, y: float, heading: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(size, size, 3) float colours in 0..255 and (size, size) depth in metres of a camera at (x, y) metres.

    Every pixel is a ray of its own: it goes from cell to cell until it is below the height of the cell it is in.
    """
    focal = size / 2 / math.tan(FIELD / 2)
    offset = (np.arange(size) + 0.5 - size / 2) / focal
    down, across = np.meshgrid(offset, offset, indexing="ij")
    dx = math.cos(heading) - across * math.sin(heading)  # metres for each metre of depth
    dy = math.sin(heading) + across * math.cos(heading)
    cx, cy = np.full(dx.shape, math.floor(x / CELL_M)), np.full(dx.shape, math.floor(y / CELL_M))
    entered, before = np.zeros(dx.shape), np.zeros(dx.shape)
    along_y, open_ = np.zeros(dx.shape, bool), np.ones(dx.shape, bool)
    depth, colour = np.zeros(dx.shape), np.zeros((*dx.shape, 3))
    tall, paint = heights(), colours()
    ceiling = np.where(down < 0, (CAMERA_M - CEILING_M) / np.where(down < 0, down, -1.0), np.inf)
    for _ in range(4 * sum(cells.shape)):
        if not open_.any():
            break
        code = cells[cy, cx]
        height = tall[code].astype(np.float64)
        with np.errstate(divide="ignore"):
            leave_x = ((cx + (dx > 0)) * CELL_M - x) / dx
            leave_y = ((cy + (dy > 0)) * CELL_M - y) / dy
        left = np.minimum(leave_x, leave_y)
        # The face: the ray comes in below the top of this cell, from a lower one.
        face = open_ & (height > before) & (CAMERA_M - down * entered <= height) & (entered > 0) & (ceiling > entered)
        light = np.where(along_y, 1.0, 0.8) / (1 + 0.08 * entered)
        panel = np.where(along_y, cy, cx) // 6 % 2 == 1
        light = np.where(panel & (height >= CEILING_M), light * 0.95, light)
        colour[face], depth[face] = paint[code[face]] * light[face][:, None], entered[face]
        open_ &= ~face
        # The top, or the floor: the ray falls below it inside this cell.
        with np.errstate(divide="ignore"):
            meets = np.where(down > 0, (CAMERA_M - height) / np.where(down > 0, down, 1.0), np.inf)
        ground = open_ & (height < CAMERA_M) & (meets <= left)
        light = 1 / (1 + 0.08 * np.where(np.isfinite(meets), meets, 0))
        tile = ((cx // 5 + cy // 5) % 2 == 1) & (height == 0)
        light = np.where(tile, light * 0.93, light)
        colour[ground], depth[ground] = paint[code[ground]] * light[ground][:, None], meets[ground]
        open_ &= ~ground
        above = open_ & (ceiling <= left)
        colour[above] = paint[NUM_CODES] / (1 + 0.08 * ceiling[above])[:, None]
        depth[above] = ceiling[above]
        open_ &= ~above
        along_y = leave_x < leave_y
        cx = np.where(open_ & along_y, cx + np.where(dx > 0, 1, -1), cx)
        cy = np.where(open_ & ~along_y, cy + np.where(dy > 0, 1, -1), cy)
        entered, before = left, height
    assert not open_.any()
    return colour, depth


def shortest(free: np.ndarray, goal: tuple[int, int]) -> np.ndarray:
    """(H, W) float metres of the shortest way by straight, diagonal and knight's moves; inf where there is none."""
    moves = [(dx, dy) for dx in range(-2, 3) for dy in range(-2, 3) if math.gcd(dx, dy) == 1]
    found = np.full(free.shape, np.inf)
    found[goal[1], goal[0]] = 0
    heap = [(0.0, goal)]
    while heap:
        length, (x, y) = heapq.heappop(heap)
        if length > found[y, x]:
            continue
        for dx, dy in moves:
            nx, ny = x + dx, y + dy
            crossed = [(nx, ny)]
            if abs(dx) == abs(dy) == 1:
                crossed += [(nx, y), (x, ny)]
            elif abs(dx) == 2:
                crossed += [(x + dx // 2, y), (x + dx // 2, ny)]
            elif abs(dy) == 2:
                crossed += [(x, y + dy // 2), (nx, y + dy // 2)]
            inside = 0 <= nx < free.shape[1] and 0 <= ny < free.shape[0]
            if inside and all(free[b, a] for a, b in crossed):
                total = length + CELL_M * math.hypot(dx, dy)
                if total < found[ny, nx] - 1e-12:
                    found[ny, nx] = total
                    heapq.heappush(heap, (total, (nx, ny)))
    return found


def moved(cells: np.ndarray, x: float, y: float, heading: float, length: float) -> tuple[float, float]:
    """Where a disc comes to that goes straight ahead in steps of 25 mm and stops before it would touch something."""
    solid = np.argwhere(heights()[cells] > 0) * CELL_M
    for _ in range(round(length / 0.025)):
        nx, ny = x + 0.025 * math.cos(heading), y + 0.025 * math.sin(heading)
        near_x = np.clip(nx, solid[:, 1], solid[:, 1] + CELL_M)
        near_y = np.clip(ny, solid[:, 0], solid[:, 0] + CELL_M)
        if (np.hypot(nx - near_x, ny - near_y) < RADIUS_M).any():
            break
        x, y = nx, ny
    return x, y
