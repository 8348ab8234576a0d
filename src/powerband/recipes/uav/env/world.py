"""World tables: footprints, sensor noise and beliefs of a `World` for each of its L altitudes, for the kernels.

A feature map has one value for each lattice node: the area average over a block of map_cells / 11 cells, which need not
be an integer. The kernels measure lengths in 11ths of a cell. In this unit a cell is 11 long and a block is `map_cells`
long, so all borders are integers and the averages are exact.

A belief is stored as log odds in integer units of 1 / 2048 (`LOG_ODDS_UNITS`). Sums of measurements are therefore
exact, and every function of a belief is a table. The rounding changes the flip probabilities of the sensor by less than
6e-5.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from powerband.envs.numba.arrays import device_array
from powerband.recipes.uav.settings import World

LOG_ODDS_UNITS = 2048  # units per 1 of log odds
MAX_BELIEF = math.floor(LOG_ODDS_UNITS * math.log((1 - 1e-4) / 1e-4))  # limits beliefs to [1e-4, 1 - 1e-4]
MAX_UNSURE_BELIEF = math.floor(LOG_ODDS_UNITS * math.log(0.501 / 0.499))  # up to here, plus or minus, the weight is 0.5
FIXED_POINT_SCALE = 1 << 20  # of probabilities and entropies in tables and sums


class WorldArrays(NamedTuple):
    """Settings of a `World` in the form that the kernels read. L is the number of altitudes.

    Attributes:
        low, high: (L, 11) int32: first visible cell by lattice coordinate, and the cell after the last one.
        step: (L,) int32: change of the log odds of a cell by one measurement, in units of 1 / 2048.
        threshold: (L,) int32: a measurement is wrong if 16 random bits are below it.
        height: (L,) float64: altitudes in metres.
        terms: (2 MAX_BELIEF + 1,) int64: for each belief, W H in the upper 32 bits and p in the lower 32 bits, times
            FIXED_POINT_SCALE. p is the probability of the region of interest, H its entropy in bits and W a weight, see
            `belief_tables`.
        entropy: (2 MAX_BELIEF + 1,) int32: H of each belief times FIXED_POINT_SCALE.
        cells: Cells along each side of the map.
        agents: UAVs per team.
        budget: Moves of each UAV after its first one.
        failure: A message is lost if 32 random bits are below it.
        drawn_range: True if each mission draws its communication range.
        comm_range: Communication range in metres.
        centred: True if all maps of a UAV have the UAV in the centre.
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


def log_odds_steps(world: World) -> np.ndarray:
    """Computes how much one measurement changes the log odds of a cell, for each of the L altitudes of `world`.

    Returns:
        (L,) int32 in units of 1 / 2048 of log odds.
    """
    noise = np.array(world.sensor_noise)
    return np.round(LOG_ODDS_UNITS * np.log((1 - noise) / noise)).astype(np.int32)


def world_arrays(world: World, device: torch.device) -> WorldArrays:
    """Converts the settings `world` to the tables and numbers that the kernels read, with the tables on `device`."""
    low, high = (np.array(edges, dtype=np.int32) for edges in world.footprints)

    def put(values: np.ndarray) -> Any:
        return device_array(torch.from_numpy(np.ascontiguousarray(values)).to(device))

    weighted, entropy, probability = belief_tables()
    return WorldArrays(
        low=put(low),
        high=put(high),
        step=put(log_odds_steps(world)),
        threshold=put(np.round(np.array(world.sensor_noise) * 65536).astype(np.int32)),
        height=put(np.array(world.altitudes_m, dtype=np.float64)),
        terms=put((weighted << 32) + probability),
        entropy=put(entropy.astype(np.int32)),
        cells=world.map_cells,
        agents=world.n_agents,
        budget=world.budget,
        failure=round(world.failure_rate * 2**32),
        drawn_range=world.random_comm_range,
        comm_range=float(world.comm_range_m),
        centred=world.centred_maps,
    )


def belief_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes the tables of weighted entropy W H, entropy H and probability p for every possible belief.

    A belief is the log odds of a cell in units of 1 / 2048, an integer from -MAX_BELIEF to MAX_BELIEF. p is the
    probability of the region of interest, and H its entropy in bits. The weight W is 1 above p = 0.501, 0 below p =
    0.499, and 0.5 between.

    Returns:
        W H, H and p, each (2 MAX_BELIEF + 1,) int64, times FIXED_POINT_SCALE.
    """
    belief = np.arange(-MAX_BELIEF, MAX_BELIEF + 1)
    p = 1 / (1 + np.exp(-(belief / LOG_ODDS_UNITS)))
    entropy = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    weighted = twice_roi_weight(belief) / 2 * entropy
    return _fixed_point(weighted), _fixed_point(entropy), _fixed_point(p)


def _fixed_point(values: np.ndarray) -> np.ndarray:
    """Multiplies `values` by FIXED_POINT_SCALE and rounds them to int64."""
    return np.round(FIXED_POINT_SCALE * values).astype(np.int64)


def twice_roi_weight(belief: np.ndarray) -> np.ndarray:
    """Returns twice the weight that a cell of each belief has in sums of entropy, as int64 of the same shape.

    The result is 2 if the belief puts the cell inside the region of interest, 0 if outside, and 1 if undecided.
    `belief` contains integer log odds in units of 1 / 2048.
    """
    return 1 + (belief > MAX_UNSURE_BELIEF).astype(np.int64) - (belief < -MAX_UNSURE_BELIEF).astype(np.int64)
