"""Trajectories: finds where recorded trajectories start, and gathers the steps before chosen transitions."""

from __future__ import annotations

import torch
from torch import Tensor


def trajectory_starts(obs: Tensor, next_obs: Tensor) -> Tensor:
    """Finds the transitions that do not continue the transition in the row before.

    Args:
        obs, next_obs: Observations (n, F entries) before and after n transitions. If a row continues the row before,
            its `obs` equals the `next_obs` of that row bit for bit.

    Returns:
        (n,) bool: True for rows that start a trajectory.
    """
    continues = (obs[1:] == next_obs[:-1]).all(-1)
    return torch.cat([continues.new_ones(1), ~continues])


class Trajectories:
    """Recorded transitions, and for each of them the trajectory of earlier steps that ends at it.

    Args:
        state: States (n, S entries) in which the n actions were executed.
        action: Actions (n, A entries).
        reward: Rewards (n,).
        start: (n,) bool: True for the first transition of a trajectory.

    Attributes:
        age: (n,) int64: number of earlier transitions in the same trajectory.
    """

    def __init__(self, state: Tensor, action: Tensor, reward: Tensor, start: Tensor) -> None:
        self.state, self.action, self.reward = state, action, reward.unsqueeze(-1)
        row = torch.arange(len(start), device=start.device)
        first = torch.where(start, row, torch.zeros_like(row)).cummax(0).values
        self.age = row - first

    def windows(self, last: Tensor, length: int, longest: Tensor | None = None) -> dict[str, Tensor]:
        """Gathers B trajectories, each of which ends at the state of a given row.

        Args:
            last: Indices (B,) int64 of the rows of the last states.
            length: Largest number of states in a trajectory.
            longest: Largest number of states in each trajectory, (B,) int64; None applies `length` to all.

        Returns:
            ``state`` (B, length, S entries), ``action`` (B, length - 1, A entries), ``reward`` (B, length - 1, 1), and
            ``length`` (B,): the number of valid states, counted from the front. Values after them are padding.
        """
        states = self.age[last].clamp(max=length - 1) + 1
        if longest is not None:
            states = torch.minimum(states, longest)
        first = (last - states + 1).unsqueeze(1)
        rows = torch.minimum(first + torch.arange(length, device=last.device), last.unsqueeze(1))
        return {
            "state": self.state[rows],
            "action": self.action[rows[:, :-1]],
            "reward": self.reward[rows[:, :-1]],
            "length": states,
        }
