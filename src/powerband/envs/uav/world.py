"""The world of a mission: what is fixed before it starts, checked once, and the tables that its rules look up.

Lengths are in metres. A map has `map_cells` cells along each side; positions are nodes of a lattice of 11 x 11 with 5 m
between them. A feature map has one value for each lattice node: the area average over a block of map_cells / 11 cells,
which need not be a whole number. In units of an 11th of a cell every border is whole: a cell is 11 long, a block is
`map_cells` long, and averages are exact.

A belief is kept in log odds as whole `UNITS` of 1 / 2048, so that sums of measurements are exact and every function of
a belief is a table. That rounds the sensor's flip probabilities by less than 6e-5.

Source: Westheider, Rueckin and Popovic 2023 (arXiv 2303.01150), section III.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from powerband.envs.arrays import device_array

AREA_M, LATTICE, SPACING_M = 50.0, 11, 5.0
FIELD_OF_VIEW = math.radians(60)
NUM_ACTIONS = 6
UP, BACK_X, BACK_Y, ON_Y, ON_X, DOWN = range(NUM_ACTIONS)
MAX_AGENTS, MAX_CELLS = 16, 2048
UNITS = 2048  # of log odds
LIMIT = math.floor(UNITS * math.log((1 - 1e-4) / 1e-4))  # beliefs stay within [1e-4, 1 - 1e-4]
SCALE = 1 << 20  # of probabilities and entropies in tables and sums
RANGES_M = (0.0, 15.0, 25.0, 100.0)


class WorldArrays(NamedTuple):
    """`World` as the kernels read it; A altitudes.

    `low`, `high` (A, 11) int32: first cell of a footprint and the one behind its last, by lattice coordinate.
    `step`, `threshold` (A,) int32: log odds of one measurement in units; flips are draws of 16 bits below it.
    `height` (A,) float64 in metres. `terms` (2 * LIMIT + 1,) int64: W H in the upper 32 bits and p in the lower, in
    1 / SCALE. `entropy` like it, int32: H. The rest are numbers.
    """

    low: Any
    high: Any
    step: Any
    threshold: Any
    height: Any
    terms: Any
    entropy: Any
    cells: int
    agents: int
    budget: int
    failure: int
    drawn_range: bool
    comm_range: float
    centred: bool


@dataclass(frozen=True)
class World:
    """What is fixed before a mission starts.

    Raises:
        ValueError: A world in which no mission can be flown.
    """

    n_agents: int = 4
    """UAVs of a team."""
    budget: int = 14
    """Moves of each UAV after its first one; a mission has budget + 1 decisions."""
    map_cells: int = 493
    """Cells along each side of the map of 50 m; 493 are 57 to the footprint at 5 m."""
    altitudes_m: tuple[float, ...] = (5.0, 10.0, 15.0)
    """Altitudes, lowest first."""
    sensor_noise: tuple[float, ...] = (0.01, 0.265, 0.375)
    """Probability that a cell is measured wrongly, for each altitude."""
    comm_range_m: float = 25.0
    """UAVs that are at most so far apart exchange positions and measurements."""
    random_comm_range: bool = False
    """Draw the range of each mission from 0, 15, 25 and 100 m instead."""
    failure_rate: float = 0.0
    """Probability that a message in range is lost."""
    truth: Literal["split", "field"] = "split"
    """Hidden field: split is a half plane from one of four sides, field a Gaussian random field; 30 to 60 % are ROI."""
    map_file: str = ""
    """A hidden field of one's own for all missions: .npy of 0 and 1, or a black and white .png; map_cells squared."""

    centred_maps: bool = False
    """All maps of a UAV have itself in the middle, not its positions alone."""

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ValueError(f"budget={self.budget}: a mission needs a move to be scored by. Write budget=1 or more.")
        if not 1 <= self.n_agents <= MAX_AGENTS:
            raise ValueError(
                f"n_agents={self.n_agents}: a team has 1 to {MAX_AGENTS} UAVs (the lattice has {LATTICE**2} cells)."
            )
        if not LATTICE <= self.map_cells <= MAX_CELLS:
            raise ValueError(
                f"map_cells={self.map_cells}: a map is averaged over {LATTICE} x {LATTICE} blocks of a cell or more. "
                f"Write {LATTICE} to {MAX_CELLS}."
            )
        if len(self.altitudes_m) != len(self.sensor_noise) or not self.altitudes_m:
            raise ValueError(
                f"altitudes_m has {len(self.altitudes_m)} values and sensor_noise {len(self.sensor_noise)}: "
                f"give one probability for each altitude."
            )
        if list(self.altitudes_m) != sorted(set(self.altitudes_m)) or self.altitudes_m[0] <= 0:
            raise ValueError(f"altitudes_m={self.altitudes_m}: give altitudes above 0, lowest first, each once.")
        top = AREA_M / 2 / math.tan(FIELD_OF_VIEW / 2)
        if self.altitudes_m[-1] > top:
            raise ValueError(
                f"altitudes_m={self.altitudes_m}: from {self.altitudes_m[-1]:g} m the camera sees more than the map of "
                f"{AREA_M:g} m. Stay at or below {top:.1f} m."
            )
        if any(not 0.0005 <= noise < 0.5 for noise in self.sensor_noise):
            raise ValueError(f"sensor_noise={self.sensor_noise}: give probabilities from 0.0005 to below 0.5.")
        if self.comm_range_m < 0:
            raise ValueError(f"comm_range_m={self.comm_range_m} is below 0. Write 0 for no communication.")
        if not 0 <= self.failure_rate <= 1:
            raise ValueError(f"failure_rate={self.failure_rate} is a probability: give 0 to 1.")
        for low, high in zip(self.footprints[0], self.footprints[1], strict=True):
            if (high <= low).any():
                raise ValueError(
                    f"map_cells={self.map_cells} is too coarse for altitudes_m={self.altitudes_m}: a footprint holds "
                    f"no cell. Write more cells, or higher altitudes."
                )

    @property
    def num_steps(self) -> int:
        """Decisions of a mission."""
        return self.budget + 1

    @cached_property
    def footprints(self) -> tuple[np.ndarray, np.ndarray]:
        """(A, 11) int32 each: first cell whose centre is seen from a coordinate, and the one behind the last."""
        cell = AREA_M / self.map_cells
        centre = SPACING_M * np.arange(LATTICE)
        half = np.tan(FIELD_OF_VIEW / 2) * np.array(self.altitudes_m)[:, None]
        low = np.ceil((centre - half) / cell - 0.5).clip(0, self.map_cells)
        high = (np.floor((centre + half) / cell - 0.5) + 1).clip(0, self.map_cells)
        return low.astype(np.int32), high.astype(np.int32)

    @cached_property
    def span(self) -> int:
        """Cells along the side of the largest footprint."""
        return int((self.footprints[1] - self.footprints[0]).max())

    @cached_property
    def steps(self) -> np.ndarray:
        """(A,) int32: log odds of one measurement, in units."""
        noise = np.array(self.sensor_noise)
        return np.round(UNITS * np.log((1 - noise) / noise)).astype(np.int32)

    def own_map(self) -> np.ndarray | None:
        """(map_cells, map_cells) uint8 of `map_file`, 1 where the ROI is; None where none is named.

        Raises:
            ValueError: No such file, or of another shape or other values.
        """
        if not self.map_file:
            return None
        path, size = Path(self.map_file), self.map_cells
        if not path.is_file() or path.suffix not in (".npy", ".png"):
            raise ValueError(f"map_file={path}: no such .npy or .png file.")
        if path.suffix == ".npy":
            try:
                found = np.load(path, allow_pickle=False)
            except ValueError as error:
                raise ValueError(f"map_file={path} is no array of numbers ({error}). Save 0 and 1 as uint8.") from None
            allowed = (0, 1)
        else:
            from PIL import Image

            found, allowed = np.asarray(Image.open(path).convert("L")), (0, 255)
        if found.shape != (size, size):
            raise ValueError(
                f"map_file={path} has shape {found.shape}, expected {(size, size)}: resize it, or set map_cells."
            )
        values = np.unique(found)
        if not np.isin(values, allowed).all():
            shown = ", ".join(f"{value:g}" for value in values[:6])
            raise ValueError(f"map_file={path} holds {shown}{' ...' if len(values) > 6 else ''}: only {allowed} may.")
        if len(values) < 2:
            raise ValueError(f"map_file={path} holds {values[0]:g} only: it needs both region of interest and none.")
        return (found == allowed[1]).astype(np.uint8)

    def arrays(self, device: torch.device) -> WorldArrays:
        """The tables on `device`."""
        low, high = self.footprints

        def put(values: np.ndarray) -> Any:
            return device_array(torch.from_numpy(np.ascontiguousarray(values)).to(device))

        weighted, plain, likely = belief_tables()
        return WorldArrays(
            low=put(low),
            high=put(high),
            step=put(self.steps),
            threshold=put(np.round(np.array(self.sensor_noise) * 65536).astype(np.int32)),
            height=put(np.array(self.altitudes_m, dtype=np.float64)),
            terms=put((weighted << 32) + likely),
            entropy=put(plain.astype(np.int32)),
            cells=self.map_cells,
            agents=self.n_agents,
            budget=self.budget,
            failure=round(self.failure_rate * 2**32),
            drawn_range=self.random_comm_range,
            comm_range=float(self.comm_range_m),
            centred=self.centred_maps,
        )


def belief_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W H, H and p of every belief from -LIMIT to LIMIT units, (2 * LIMIT + 1,) int64 each, in 1 / SCALE.

    H in bits; the weight W is 1 above p = 0.501, 0 below 0.499, and 0.5 between.
    """
    odds = np.arange(-LIMIT, LIMIT + 1) / UNITS
    p = 1 / (1 + np.exp(-odds))
    entropy = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    weight = weight_of(np.arange(-LIMIT, LIMIT + 1)) / 2
    return tuple(np.round(SCALE * values).astype(np.int64) for values in (weight * entropy, entropy, p))


UNSURE = math.floor(UNITS * math.log(0.501 / 0.499))  # beliefs from -UNSURE to UNSURE units have weight 0.5


def weight_of(belief: np.ndarray) -> np.ndarray:
    """Twice the weight: 2, 1 or 0."""
    return 1 + (belief > UNSURE).astype(np.int64) - (belief < -UNSURE).astype(np.int64)
