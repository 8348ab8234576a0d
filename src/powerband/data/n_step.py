"""n-step windows: up to n successive transitions of one episode in a replay, for n-step returns.

A replay stores the transitions of many environments between each other and omits lost ones. Each of its rows therefore
has a link to the row with the next transition of the same episode. The last row of an episode, and the newest row of an
environment, link to themselves; a window cannot continue there. No link ever points to an overwritten row, because the
ring overwrites a row no later than its successor.

Source of n-step returns: Sutton and Barto 2018, "Reinforcement Learning", section 7.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import Tree, broadcast_rows


class NStepWindows:
    """Finds n-step windows in a replay buffer, in which each row is one transition.

    For each row it stores the row of the next transition of the same episode. A window is a row and up to n - 1
    successors.

    Attributes:
        following: (capacity,) int64: row of the next transition of the same episode, or the row itself.
        newest: (num_envs,) int64: row of the newest transition of each environment, -1 if nothing may continue it.
    """

    def __init__(self, n: int, gamma: float, capacity: int, num_envs: int, device: torch.device) -> None:
        """
        Args:
        n: Largest number of transitions in a window.
        gamma: Discount per step.
        capacity: Number of rows of the replay buffer.
        num_envs: Number of environments whose transitions are stored.
        device: Device of the rows.
        """
        self.n, self.gamma, self.capacity = n, gamma, capacity
        self.following = torch.arange(capacity, device=device)
        self.newest = torch.full((num_envs,), -1, device=device)

    def add(self, start: int, ended: Tensor, valid: Tensor | None) -> None:
        """Registers the rows in which the replay buffer has just stored one transition per environment.

        Args:
            start: First of the new rows; after the last row of the buffer they continue at row 0.
            ended: (num_envs,) bool: the episode ended with this transition.
            valid: int64 indices of the environments that have a new row, in ascending order; None if all have one.
        """
        ended = ended.to(self.newest.device)
        previous, newest = self.newest, self.newest
        if valid is not None:
            valid = valid.to(self.newest.device)
            previous, ended = previous.index_select(0, valid), ended.index_select(0, valid)
            newest = torch.full_like(newest, -1)
        count = len(previous)
        rows = (torch.arange(count, device=self.newest.device) + start) % self.capacity
        self.following[rows] = rows
        # A row that this step has overwritten (the capacity is below two steps) is no predecessor either.
        missing = (previous < 0) | ((previous - start) % self.capacity < count)
        self.following[torch.where(missing, rows, previous)] = rows
        rows = torch.where(ended, -1, rows)
        self.newest = rows if valid is None else newest.index_copy_(0, valid, rows)

    def cut(self, envs: Tensor) -> None:
        """Ends the windows of environments whose episode is discarded: (num_envs,) bool `envs` is True for these."""
        self.newest = self.newest.masked_fill(envs.to(self.newest.device), -1)

    def returns(self, first: Tensor, reward: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the sums of discounted rewards of B windows, with fixed shapes and no host-device synchronisation.

        Args:
            first: (B,) int64: row of the first transition of each window.
            reward: (capacity,) or (capacity, A) float32: rewards of all rows, per environment or per agent.

        Returns:
            Row of the last transition of each window (B,); sums of gamma^k times reward k, (B,) or (B, A); lengths in
            transitions (B,) int64.
        """
        last, total, steps = first, reward.index_select(0, first), torch.ones_like(first)
        for power in range(1, self.n):
            following = self.following.index_select(0, last)
            continues = following != last
            last, steps = following, steps + continues
            gained = self.gamma**power * reward.index_select(0, last)
            total = total + torch.where(broadcast_rows(continues, gained), gained, 0.0)
        return last, total, steps

    def state_dict(self, size: int) -> dict[str, Tensor]:
        """Returns the links of the first `size` rows, where `size` is the number of stored transitions."""
        return {"following": self.following[:size], "newest": self.newest}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores a result of `state_dict`.

        Raises:
            ConfigError: The saved replay buffer has no links, because it was filled with n_step=1.
        """
        if "following" not in state:
            raise ConfigError(
                f"off_policy.n_step={self.n} cannot continue this run, because its replay was filled with n_step=1. "
                f"Resume with off_policy.n_step=1, or start a new run."
            )
        self.following[: len(state["following"])].copy_(state["following"])
        self.newest = state["newest"].to(self.newest.device, copy=True)


def bootstrap_discount(batch: dict[str, Tree], gamma: float) -> Tensor:
    """Computes the discount factor (B,) of the value of ``next_obs`` in the targets of a batch of B samples.

    It is gamma to the power of ``steps`` (B,), the lengths of n-step windows; without ``steps`` the lengths are 1.
    Where ``terminated`` (B,) is True it is 0.
    """
    continues = (~batch["terminated"]).float()
    return (gamma ** batch["steps"] if "steps" in batch else gamma) * continues
