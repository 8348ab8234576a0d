"""Mission state: stores N missions in tensors that the kernels update in place."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerband.envs.numba.arrays import device_array
from powerband.recipes.uav.settings import LATTICE, World


class MissionArrays(NamedTuple):
    """The tensors of a `Missions` as arrays for numba. `Missions` explains the fields."""

    truth: Any
    belief: Any
    sums: Any
    seen: Any
    measured: Any
    position: Any
    rect: Any
    heard: Any
    comm_range: Any
    gain: Any
    mission: Any
    episode: Any
    tick: Any


@dataclass(frozen=True)
class Missions:
    """State of N missions of A UAVs on maps of M x M cells.

    Maps 0..A-1 are the beliefs of the UAVs. Map A is the belief from all measurements together. Below, p is the
    probability that a cell is in the region of interest, H its entropy in bits, and W its weight, see `belief_tables`.

    Attributes:
        truth: (N, M, M) uint8: 1 in the region of interest.
        belief: (N, A + 1, M, M) int16: log odds in units of 1 / 2048, see `world`.
        sums: (N, A + 1, 2, 11, 11) int64: sums of W H and of p over each block, 1/11 of the map along each side. Each
            cell is weighted with its overlap in 121sts of a cell, and the values are multiplied by FIXED_POINT_SCALE.
        seen: (N, A, 11, 11) int64: sums of W H of each UAV's belief inside its latest footprint, scaled as `sums`.
        measured: (N, A, S, S) int16: latest measurement of each UAV, as a change of the log odds; S is
            `World.footprint_cells`.
        position: (N, A, 3) int64: lattice x, lattice y and index of the altitude.
        rect: (N, A, 4) int32: footprint as first row, row after the last, first column, column after the last.
        heard: (N, A) int32: bit j is set if the UAV received the message of UAV j after the latest move.
        comm_range: (N,) float64: communication range in metres.
        gain: (N, 2) int64: sums over the cells of map A for the latest move: 2 W (H_before - H_after) and 2 W H_before,
            with W after the move, times FIXED_POINT_SCALE.
        mission: (N,) int64: index of the mission among those of all ranks; with `tick` it is the key of random draws.
        episode: (N,) int64: missions started since the seed was set.
        tick: (N,) int64: moves and starts since the seed was set.
    """

    truth: Tensor
    belief: Tensor
    sums: Tensor
    seen: Tensor
    measured: Tensor
    position: Tensor
    rect: Tensor
    heard: Tensor
    comm_range: Tensor
    gain: Tensor
    mission: Tensor
    episode: Tensor
    tick: Tensor

    @classmethod
    def empty(cls, num_envs: int, world: World, first_env: int, device: torch.device) -> Missions:
        """Creates the state of `num_envs` missions that have not started; `mission` counts from `first_env`."""
        agents, cells, span = world.n_agents, world.map_cells, world.footprint_cells
        layout = {
            "truth": ((cells, cells), torch.uint8),
            "belief": ((agents + 1, cells, cells), torch.int16),
            "sums": ((agents + 1, 2, LATTICE, LATTICE), torch.int64),
            "seen": ((agents, LATTICE, LATTICE), torch.int64),
            "measured": ((agents, span, span), torch.int16),
            "position": ((agents, 3), torch.int64),
            "rect": ((agents, 4), torch.int32),
            "heard": ((agents,), torch.int32),
            "comm_range": ((), torch.float64),
            "gain": ((2,), torch.int64),
            "mission": ((), torch.int64),
            "episode": ((), torch.int64),
            "tick": ((), torch.int64),
        }
        tensors = {
            name: torch.zeros((num_envs, *shape), dtype=dtype, device=device) for name, (shape, dtype) in layout.items()
        }
        tensors["mission"] += torch.arange(first_env, first_env + num_envs, device=device)
        return cls(**tensors)

    @property
    def num_rows(self) -> int:
        """Number of missions N."""
        return self.position.shape[0]

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.position.device

    @cached_property
    def arrays(self) -> MissionArrays:
        """Views of the tensors as arrays for numba."""
        return MissionArrays(*(device_array(getattr(self, field.name)) for field in fields(self)))
