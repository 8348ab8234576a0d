"""Collective: the policy and critics of all tasks, which know the task by its code z alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from powerband.nets.mlp import MLP, TwinMLP

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
STATE = 21


def state_of(obs: Tensor) -> Tensor:
    """What all tasks have in common of Meta-World's observation (..., 39): now and the goal, (..., 21)."""
    return torch.cat([obs[..., :18], obs[..., 36:39]], -1)


class Collective(nn.Module):
    """Features [z, state] -> tanh-Gaussian policy; with an action -> twin values."""

    def __init__(self, code: int = 6, hidden: Sequence[int] = (300, 300), action: int = 4) -> None:
        """
        Args:
            code: Entries of z.
            hidden: Widths of the hidden layers.
            action: Entries of an action.
        """
        super().__init__()
        self.actor = MLP(code + STATE, hidden, 2 * action)
        self.critic = TwinMLP(code + STATE + action, hidden, 1)

    def policy(self, z: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """mu (..., A) in [-1, 1], and log_std (..., A) of the Gaussian before the tanh."""
        mean, log_std = self.actor(torch.cat([z, state], -1)).chunk(2, -1)
        return torch.tanh(mean), log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def value(self, z: Tensor, state: Tensor, action: Tensor) -> Tensor:
        """(2, B) values of actions (B, A)."""
        return self.critic(torch.cat([z, state, action], -1)).squeeze(-1)
