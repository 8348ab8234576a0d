"""Reference mission: a slow implementation of the formulas in numpy, with probabilities and sums over complete maps.

The caller provides the random parts: the hidden map, the start positions, the measurements, and the received messages.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

AREA, LATTICE, SPACING = 50.0, 11, 5.0
MOVES = {0: (0, 0, 1), 1: (-1, 0, 0), 2: (0, -1, 0), 3: (0, 1, 0), 4: (1, 0, 0), 5: (0, 0, -1)}


def entropy(p: np.ndarray) -> np.ndarray:
    """Computes the entropy in bits."""
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


def weight(p: np.ndarray) -> np.ndarray:
    """Returns 1 for a believed region of interest, 0 for a believed background, 0.5 if it is undecided."""
    return np.where(p > 0.501, 1.0, np.where(p < 0.499, 0.0, 0.5))


@cache
def shares(cells: int) -> np.ndarray:
    """Returns (11, M): the part of each cell, along one side, that lies in each block; a cell may lie in two."""
    edges = np.arange(LATTICE + 1) * cells / LATTICE
    share = np.zeros((LATTICE, cells))
    for row in range(LATTICE):
        for cell in range(cells):
            share[row, cell] = max(0.0, min(edges[row + 1], cell + 1) - max(edges[row], cell))
    return share


def average(values: np.ndarray) -> np.ndarray:
    """Computes area averages (11, 11) of values (M, M)."""
    cells = len(values)
    return shares(cells) @ values @ shares(cells).T / (cells / LATTICE) ** 2


class ReferenceMission:
    """One mission of the reference implementation.

    Args:
        cells: Cells along each side.
        noise: Flip probability of each altitude.
        heights: Altitudes in metres.
        position: (A, 3) lattice x, y and altitude index of the start.
    """

    def __init__(self, cells: int, noise: list[float], heights: list[float], position: np.ndarray, budget: int) -> None:
        self.cells, self.noise, self.heights, self.budget = cells, noise, heights, budget
        self.position = [tuple(int(value) for value in row) for row in position]
        self.maps = np.full((len(position) + 1, cells, cells), 0.5)  # one per UAV, then the common map
        self.moves = 0

    def visible(self, position: tuple[int, int, int]) -> np.ndarray:
        """Returns (M, M) bool: cells whose centre is inside the footprint."""
        x, y, z = position
        half = self.heights[z] * math.tan(math.radians(30))
        centre = (np.arange(self.cells) + 0.5) * AREA / self.cells
        rows = np.abs(centre - SPACING * x) <= half
        return np.outer(rows, np.abs(centre - SPACING * y) <= half)

    def measure_and_fuse(self, measured: list[np.ndarray], heard: list[set[int]]) -> float:
        """Fuses measurements and returns the reward.

        Args:
            measured: (M, M) for each UAV: 0 or 1 inside its footprint.
            heard: UAVs whose measurements each UAV receives.
        """
        before = self.maps[-1].copy()
        for k in range(len(self.maps)):
            for j in range(len(self.position)):
                if k == len(self.position) or j in heard[k]:
                    visible, noise = self.visible(self.position[j]), self.noise[self.position[j][2]]
                    likely = np.where(measured[j] == 1, 1 - noise, noise)
                    p = self.maps[k]
                    fused = p * likely / (p * likely + (1 - p) * (1 - likely))
                    self.maps[k] = np.where(visible, np.clip(fused, 1e-4, 1 - 1e-4), p)
        self.heard = heard
        w = weight(self.maps[-1])
        gain = (w * (entropy(before) - entropy(self.maps[-1]))).mean()
        return 22 * gain / (w * entropy(before)).mean() - 0.5

    def move(self, actions: list[int]) -> None:
        """Moves all UAVs; they stay at the border."""
        limits = (LATTICE, LATTICE, len(self.heights))
        for i, action in enumerate(actions):
            target = (a + b for a, b in zip(self.position[i], MOVES[action], strict=True))
            self.position[i] = tuple(min(max(v, 0), limit - 1) for v, limit in zip(target, limits, strict=True))
        self.moves += 1

    def masks(self, actions: list[int]) -> list[list[bool]]:
        """Returns the allowed actions of each UAV, given that the UAVs before it chose as in `actions`."""
        masks, taken = [], []
        for i, (x, y, z) in enumerate(self.position):
            allowed = {}
            for action, (dx, dy, dz) in MOVES.items():
                inside = 0 <= x + dx < LATTICE and 0 <= y + dy < LATTICE and 0 <= z + dz < len(self.heights)
                if inside:
                    allowed[action] = (x + dx, y + dy)
            for cell in taken:
                for action in sorted(allowed):
                    if allowed[action] == cell and len(allowed) > 1:
                        del allowed[action]
            masks.append([action in allowed for action in range(6)])
            dx, dy, _ = MOVES[actions[i]]
            taken.append((x + dx, y + dy))
        return masks

    def uav_maps(self, i: int) -> np.ndarray:
        """Returns the maps of UAV `i`, (7, 11, 11)."""
        agents, (x, y, z) = len(self.position), self.position[i]
        p, levels = self.maps[i], len(self.heights) + 1
        own, received = self.visible(self.position[i]), np.zeros_like(p, dtype=bool)
        nearby = np.zeros((LATTICE, LATTICE))
        for row in range(LATTICE):
            for col in range(LATTICE):
                inside = 0 <= x + row - 5 < LATTICE and 0 <= y + col - 5 < LATTICE
                nearby[row, col] = 1.0 if inside else 0.0
        for j in sorted(self.heard[i] - {i}):
            received |= self.visible(self.position[j])
            row, col = self.position[j][0] - x + 5, self.position[j][1] - y + 5
            if 0 <= row < LATTICE and 0 <= col < LATTICE:
                nearby[row, col] = (self.position[j][2] + 1) / levels
        nearby[5, 5] = (z + 1) / levels
        footprints = np.where(own, 1.0, np.where(received, 0.0, 0.5))
        wh = weight(p) * entropy(p)
        return np.stack(
            [
                np.full((LATTICE, LATTICE), (self.budget - self.moves) / self.budget),
                np.full((LATTICE, LATTICE), (i + 1) / agents),
                nearby,
                average(wh),
                average(np.where(own, wh, 0.0)),
                average(p),
                average(footprints),
            ]
        )

    def team_maps(self) -> np.ndarray:
        """Returns the maps of the team, (4, 11, 11)."""
        p, positions = self.maps[-1], np.zeros((LATTICE, LATTICE))
        visible = np.zeros((self.cells, self.cells), dtype=bool)
        for position in self.position:
            positions[position[0], position[1]] = (position[2] + 1) / len(self.heights)
            visible |= self.visible(position)
        return np.stack([positions, average(weight(p) * entropy(p)), average(p), average(np.where(visible, 1.0, 0.5))])
