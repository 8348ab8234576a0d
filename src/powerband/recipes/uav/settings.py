"""Settings of uav: defines the options of the simulated world, and constants. This file does not import torch.

Lengths are in metres. Positions are nodes of a lattice of 11 x 11 nodes that are 5 m apart. The hidden map has
`map_cells` cells along each side.

Source: Westheider, Rueckin and Popovic 2023 (arXiv 2303.01150), section III.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from powerband.core.config.ranges import FilePath, Length, Range, Share, check_ranges
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError

AREA_M, LATTICE, SPACING_M = 50.0, 11, 5.0
FIELD_OF_VIEW = math.radians(60)
NUM_ACTIONS = 6
UP, BACK_X, BACK_Y, ON_Y, ON_X, DOWN = range(NUM_ACTIONS)
MAX_AGENTS, MAX_CELLS = 16, 2048
Agents = Annotated[int, Range(at_least=1, at_most=MAX_AGENTS)]
CommRange = Annotated[float, Range(at_least=0, infinite=True)]
Altitude = Annotated[float, Range(above=0, at_most=AREA_M)]
NoiseProbability = Annotated[float, Range(at_least=0.0005, below=0.5)]
RANGES_M = (0.0, 15.0, 25.0, 100.0)
"""Communication ranges that `World.random_comm_range` draws from."""

Spans = tuple[tuple[int, ...], ...]
"""A table of cell numbers: one row per altitude, with one number for each of the 11 coordinates of the lattice."""


@dataclass(frozen=True)
@check_ranges
class World:
    """Settings of the simulated world that all missions share. The constructor checks them.

    Raises:
        ConfigError: A setting is out of range, or two settings contradict each other.
    """

    n_agents: Agents = 4
    """UAVs per team."""
    budget: Annotated[int, Range(at_least=1, at_most=100000)] = 14
    """Moves of each UAV after its first one; a mission has budget + 1 decisions."""
    map_cells: Annotated[int, Range(at_least=LATTICE, at_most=MAX_CELLS)] = 493
    """Cells along each side of the map of 50 m; with 493 the footprint from 5 m is 57 cells wide."""
    altitudes_m: Annotated[tuple[Altitude, ...], Length(1)] = (5.0, 10.0, 15.0)
    """Flight altitudes in metres, lowest first."""
    sensor_noise: Annotated[tuple[NoiseProbability, ...], Length(1)] = (0.01, 0.265, 0.375)
    """Probability of a wrong measurement of a cell, for each altitude."""
    comm_range_m: CommRange = 25.0
    """Largest distance in metres at which UAVs exchange positions and measurements."""
    random_comm_range: bool = False
    """Draw the range of each mission from 0, 15, 25 and 100 m instead."""
    failure_rate: Share = 0.0
    """Probability that a message within range is lost."""
    truth: Literal["split", "field"] = "split"
    """Hidden map: split is a half plane from one of four sides, field is a Gaussian random field; the region of
    interest covers 30 to 60 % of it."""
    map_file: FilePath = ""
    """File with a hidden map for all missions: .npy of 0 and 1, or a black and white .png, of map_cells squared."""

    reward: Literal["entropy", "f1"] = "entropy"
    """Reward of a move: entropy is 22 rho - 0.5, where rho is the relative decrease of the weighted entropy of the map;
    f1 is 22 times the increase of its F1 score, which is computed with the hidden map."""
    centred_maps: bool = False
    """Shift all maps of a UAV so that the UAV is in the middle, not only its map of positions."""

    def __post_init__(self) -> None:
        if len(self.altitudes_m) != len(self.sensor_noise):
            raise ConfigError(
                f"world.altitudes_m has {len(self.altitudes_m)} values and world.sensor_noise has "
                f"{len(self.sensor_noise)}. Write in sensor_noise one probability for each altitude."
            )
        altitudes = shortened(",".join(map(str, self.altitudes_m)))
        if list(self.altitudes_m) != sorted(set(self.altitudes_m)):
            raise ConfigError(
                f"world.altitudes_m={altitudes} is invalid: the altitudes must increase. Write the lowest "
                f"first, each once."
            )
        highest = AREA_M / 2 / math.tan(FIELD_OF_VIEW / 2)
        if self.altitudes_m[-1] > highest:
            raise ConfigError(
                f"world.altitudes_m={altitudes}: from {self.altitudes_m[-1]:g} m, the camera sees more than the "
                f"map, which is {AREA_M:g} m wide. Write altitudes of {highest:.1f} m or less."
            )
        if min(high - low for low, high in self._footprint_sides()) <= 0:
            raise ConfigError(
                f"world.map_cells={self.map_cells} is too coarse for world.altitudes_m={altitudes}: from the "
                f"lowest altitude, a camera sees the centre of no cell. Write a larger map_cells or higher altitudes."
            )

    @property
    def num_steps(self) -> int:
        """Number of moves of each UAV in a mission, `budget` + 1."""
        return self.budget + 1

    @cached_property
    def footprints(self) -> tuple[Spans, Spans]:
        """Range of map cells that a camera sees along one axis, for each altitude and lattice coordinate.

        Returns:
            Two tables (altitudes, 11): the first cell whose centre is visible, and the cell after the last visible one.
        """
        cell = AREA_M / self.map_cells
        lows, highs = [], []
        for altitude in self.altitudes_m:
            half = math.tan(FIELD_OF_VIEW / 2) * altitude
            centres = [SPACING_M * k for k in range(LATTICE)]
            low = (math.ceil((centre - half) / cell - 0.5) for centre in centres)
            high = (math.floor((centre + half) / cell - 0.5) + 1 for centre in centres)
            lows.append(tuple(min(max(edge, 0), self.map_cells) for edge in low))
            highs.append(tuple(min(max(edge, 0), self.map_cells) for edge in high))
        return tuple(lows), tuple(highs)

    @cached_property
    def footprint_cells(self) -> int:
        """Number of cells along the side of the largest footprint, which is the square that a camera sees."""
        return max(high - low for low, high in self._footprint_sides())

    def _footprint_sides(self) -> Iterator[tuple[int, int]]:
        """Yields (first visible cell, cell after the last visible one) for each altitude and lattice coordinate."""
        for lows, highs in zip(*self.footprints, strict=True):
            yield from zip(lows, highs, strict=True)
