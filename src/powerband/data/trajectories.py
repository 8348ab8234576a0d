"""Trajectories: transitions in the order in which they happened, and windows over the last of them."""

from __future__ import annotations

import torch
from torch import Tensor


def starts_of(obs: Tensor, next_obs: Tensor) -> Tensor:
    """(n,) bool: transitions that do not go on from the one in the row before.

    Args:
        obs, next_obs: (n, F) of neighbouring transitions; where one goes on from the other they are equal, bit for bit.
    """
    goes_on = (obs[1:] == next_obs[:-1]).all(-1)
    return torch.cat([goes_on.new_ones(1), ~goes_on])


class Trajectories:
    """Rows of transitions, each with what led to it.

    Args:
        state: (n, S) state that each action was taken in.
        action: (n, A).
        reward: (n,).
        start: (n,) bool: nothing is known of what led to this row.

    Attributes:
        age: (n,) int64: rows that led to this one.
    """

    def __init__(self, state: Tensor, action: Tensor, reward: Tensor, start: Tensor) -> None:
        self.state, self.action, self.reward = state, action, reward.unsqueeze(-1)
        row = torch.arange(len(start), device=start.device)
        first = torch.where(start, row, torch.zeros_like(row)).cummax(0).values
        self.age = row - first

    def windows(self, last: Tensor, length: int, longest: Tensor | None = None) -> dict[str, Tensor]:
        """What led to the states of the rows `last`, these states included.

        Args:
            last: (B,) int64 rows.
            length: States of a window at most.
            longest: (B,) int64: states of each window at most, where fewer are wanted.

        Returns:
            ``state`` (B, length, S), ``action`` (B, length - 1, A), ``reward`` (B, length - 1, 1), ``length`` (B,):
            states that are there, from the front; what follows them means nothing.
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
