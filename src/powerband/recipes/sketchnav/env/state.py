"""Agents: holds the state of N agents in tensors that kernels update in place."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerband.envs.numba.arrays import device_array


class AgentArrays(NamedTuple):
    """The tensors of `Agents`, which describes them, as arrays for numba."""

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
    """State of N agents. The names of the fields are keys of checkpoints.

    Attributes:
        at: Positions (N, 2) int64: x and y in 1/64 mm.
        heading: Headings (N,) int64 in tens of degrees, clockwise from the x axis of the plan.
        made: Number of actions in the current episode (N,) int64.
        moved: Substeps of 25 mm that the agent has moved in the episode (N,) int64.
        potential: (N,) float64 in metres: 0.8 of the remaining path + 0.2 of the distance to the path. The reward
            contains a multiple of its decrease.
        distance: Length of the shortest path to the goal (N,) float64, in metres.
        expert: Action that follows the shortest path (N,) int64; up to date only if the reward depends on it.
        hit: 1 if the last action collided, else 0 (N,) uint8.
        reward: Rewards (N,) float32.
        ended: (N,) uint8: 1 if the last action terminated the episode, 2 if the limit of actions truncated it, else 0.
        success: 1 if the episode ended with success, else 0 (N,) uint8.
        episode: Episode numbers (N,) int64.
        row: Numbers of the agents over all ranks (N,) int64.
        tick: Episodes begun since the seed was set (N,) int64. `row` and `tick` select all random numbers.
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
        """Creates agents whose state is zero, before their first episodes begin.

        Args:
            num_envs: N, number of agents.
            first_env: Number of the first agent over all ranks (training processes of a distributed run).
            device: Device of the tensors.
        """
        dtypes = {"potential": torch.float64, "distance": torch.float64, "reward": torch.float32}
        dtypes |= {"hit": torch.uint8, "ended": torch.uint8, "success": torch.uint8}
        tensors = {
            field.name: torch.zeros(num_envs, dtype=dtypes.get(field.name, torch.int64), device=device)
            for field in fields(cls)
        }
        tensors["at"] = torch.zeros(num_envs, 2, dtype=torch.int64, device=device)
        tensors["row"] += torch.arange(first_env, first_env + num_envs, device=device)
        return cls(**tensors)

    @property
    def num_rows(self) -> int:
        """N, the number of agents."""
        return self.heading.shape[0]

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.heading.device

    @cached_property
    def arrays(self) -> AgentArrays:
        """The tensors of the agents as arrays for numba, which share their memory."""
        return AgentArrays(*(device_array(getattr(self, field.name)) for field in fields(self)))
