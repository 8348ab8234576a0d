"""CollectiveActorCritic: one policy and its critics for all tasks, distilled from the experts.

The task is identified by a code z alone, which `TrajectoryEncoder` computes from the last steps of the episode.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from powerband.nets.mlp import MLP, TwinMLP

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
STATE_SIZE = 21
"""Number of entries of a state that all tasks share."""


def shared_state(obs: Tensor) -> Tensor:
    """Selects the entries of Meta-World's observation that all tasks share: the current step and the goal.

    Args:
        obs: Observations (..., 39 or more).

    Returns:
        States (..., 21).
    """
    return torch.cat([obs[..., :18], obs[..., 36:39]], -1)


class CollectiveActorCritic(nn.Module):
    """Maps [z, state] to a tanh-Gaussian policy, and [z, state, action] to the values of two critics.

    ``z`` is the code of a trajectory, from `TrajectoryEncoder`.
    """

    def __init__(self, code: int = 6, hidden: Sequence[int] = (300, 300), action: int = 4) -> None:
        """
        Args:
            code: Entries of z.
            hidden: Widths of the hidden layers.
            action: Entries of an action.
        """
        super().__init__()
        self.actor = MLP(code + STATE_SIZE, hidden, 2 * action)
        self.critic = TwinMLP(code + STATE_SIZE + action, hidden, 1)

    def policy(self, z: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the policy for codes `z` of Z entries (..., Z) and states (..., 21); actions have A entries.

        Returns:
            The mean action mu (..., A) in [-1, 1], and log_std (..., A) of the Gaussian before the tanh.
        """
        mean, log_std = self.actor(torch.cat([z, state], -1)).chunk(2, -1)
        return torch.tanh(mean), log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def value(self, z: Tensor, state: Tensor, action: Tensor) -> Tensor:
        """Computes the values (2, B) of both critics for codes `z` (B, Z), states (B, 21) and actions (B, A).

        There are B batch rows; Z and A are the numbers of entries of a code and of an action.
        """
        return self.critic(torch.cat([z, state, action], -1)).squeeze(-1)
