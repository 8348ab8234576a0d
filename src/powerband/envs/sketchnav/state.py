"""The state of N agents in tensors that are only ever written in place."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerband.envs.arrays import device_array


class AgentArrays(NamedTuple):
    """The tensors of `Agents` as arrays that numba reads."""

    at: Any
    heading: Any
    made: Any
    moved: Any
    potential: Any
    distance: Any
    expert: Any
    hit: Any
    reward: Any
    ended: Any
    success: Any
    episode: Any
    row: Any
    tick: Any


@dataclass(frozen=True)
class Agents:
    """Everything that N agents are.

    Attributes:
        at: (N, 2) int64: x, y in 1/64 mm.
        heading: (N,) int64: tens of degrees, clockwise on the plan from its x axis.
        made: (N,) int64: actions of the episode. moved: (N,) int64: substeps of 25 mm walked.
        potential: (N,) float64: D of the reward, metres. distance: (N,) float64: metres of the way to the goal.
        expert: (N,) int64: what the follower does here; kept where the reward needs it.
        hit: (N,) uint8: the last action ran into something.
        reward: (N,) float32. ended: (N,) uint8: 1 where the last action ended the episode, 2 where the limit did.
        success: (N,) uint8: of an episode that ended.
        episode: (N,) int64: which of the set.
        row: (N,) int64: number over all ranks; with `tick`, episodes begun since the seed, it keys every draw.
    """

    at: Tensor
    heading: Tensor
    made: Tensor
    moved: Tensor
    potential: Tensor
    distance: Tensor
    expert: Tensor
    hit: Tensor
    reward: Tensor
    ended: Tensor
    success: Tensor
    episode: Tensor
    row: Tensor
    tick: Tensor

    @classmethod
    def empty(cls, num_envs: int, first_env: int, device: torch.device) -> Agents:
        """Agents that have not begun, numbered from `first_env`."""
        kinds = {"potential": torch.float64, "distance": torch.float64, "reward": torch.float32}
        kinds |= {"hit": torch.uint8, "ended": torch.uint8, "success": torch.uint8}
        made = {
            field.name: torch.zeros(num_envs, dtype=kinds.get(field.name, torch.int64), device=device)
            for field in fields(cls)
        }
        made["at"] = torch.zeros(num_envs, 2, dtype=torch.int64, device=device)
        made["row"] += torch.arange(first_env, first_env + num_envs, device=device)
        return cls(**made)

    @property
    def num_envs(self) -> int:
        """N."""
        return self.heading.shape[0]

    @cached_property
    def arrays(self) -> AgentArrays:
        """The same memory as arrays for numba."""
        return AgentArrays(*(device_array(getattr(self, field.name)) for field in fields(self)))
