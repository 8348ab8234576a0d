"""The state of N missions in tensors that are only ever written in place."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerband.envs.arrays import device_array

from .world import LATTICE, World


class MissionArrays(NamedTuple):
    """The tensors of `Missions` as arrays that numba reads."""

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
    """Everything that N missions of A UAVs on maps of M x M cells are.

    Maps 0..A-1 are what each UAV believes, map A is what all measurements together say.

    Attributes:
        truth: (N, M, M) uint8: 1 in the region of interest.
        belief: (N, A + 1, M, M) int16: log odds in units, see `world`.
        sums: (N, A + 1, 2, 11, 11) int64: W H and p of each block, times the overlap in 121sts of a cell, in 1 / SCALE.
        seen: (N, A, 11, 11) int64: W H of each UAV's belief inside its last footprint, likewise.
        measured: (N, A, S, S) int16: the last measurement of each UAV, in units.
        position: (N, A, 3) int64: lattice x, y and index of the altitude.
        rect: (N, A, 4) int32: the footprint: first row, row behind the last, first column, column behind the last.
        heard: (N, A) int32: bit j is set where the UAV has heard UAV j after the last move.
        comm_range: (N,) float64, metres.
        gain: (N, 2) int64: of the last move, sum over cells of 2 W (H_before - H_after) and of 2 W H_before, W after.
        mission: (N,) int64: number over all ranks; with `tick` it keys every random draw.
        episode: (N,) int64: missions begun since the seed.
        tick: (N,) int64: moves and starts since the seed.
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
        """Missions that have not begun, numbered from `first_env`."""
        agents, cells, span = world.n_agents, world.map_cells, world.span
        shapes = {
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
        made = {name: torch.zeros((num_envs, *s), dtype=dtype, device=device) for name, (s, dtype) in shapes.items()}
        made["mission"] += torch.arange(first_env, first_env + num_envs, device=device)
        return cls(**made)

    @property
    def num_envs(self) -> int:
        """N."""
        return self.position.shape[0]

    @cached_property
    def arrays(self) -> MissionArrays:
        """The same memory as arrays for numba."""
        return MissionArrays(*(device_array(getattr(self, field.name)) for field in fields(self)))
