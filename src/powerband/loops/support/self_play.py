"""Self-play: a pool of past policies as opponents, which prevents the policy from forgetting how to beat them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from powerband.core.errors import ConfigError


class OpponentPool:
    """Pool of snapshots of a network, which act as opponents in self-play.

    Each snapshot acts for an equal share of the environments that play against the pool. Half of the pool are the
    newest snapshots. The other half keeps every second snapshot that leaves the first half, so it covers a longer
    period.

    Args:
        net: Network that is trained.
        act_fn: Function (network, observations (n, ...)) -> actions (n, ...), called with each snapshot.
        size: Number of snapshots, at least 1. Initially all of them are the untrained network.
        interval: Rollouts between two snapshots, at least 1.

    Raises:
        ConfigError: A number is below 1.
    """

    def __init__(self, net: nn.Module, act_fn: Callable[[Any, Tensor], Tensor], size: int, interval: int) -> None:
        if size < 1 or interval < 1:
            raise ConfigError(
                f"pool_size={size} and snapshot_interval={interval} must both be 1 or more. Write larger values."
            )
        self.net, self.act_fn, self.interval = net, act_fn, interval
        self.members = [copy.deepcopy(net).requires_grad_(False) for _ in range(size)]
        self.rollouts = 0

    def after_update(self) -> None:
        """Counts a rollout, and takes a snapshot after every `interval` rollouts."""
        self.rollouts += 1
        if self.rollouts % self.interval == 0:
            self.snapshot()

    def snapshot(self) -> None:
        """Copies the current network into the pool, in place of an old snapshot."""
        recent = (len(self.members) + 1) // 2
        skips = (self.rollouts // self.interval) % 2
        reused = self.members.pop(recent - 1 if skips else len(self.members) - 1)
        reused.load_state_dict(self.net.state_dict())
        self.members.insert(0, reused)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Computes the actions of the opponents.

        Args:
            obs: Observations (n, ...) of n environments. They are split into equal parts, one per snapshot.

        Returns:
            Actions (n, ...).
        """
        parts = torch.tensor_split(obs, len(self.members))
        return torch.cat([self.act_fn(net, part) for net, part in zip(self.members, parts, strict=True) if len(part)])

    def state_dict(self) -> dict:
        return {"rollouts": self.rollouts, "members": [dict(net.state_dict()) for net in self.members]}

    def load_state_dict(self, state: dict) -> None:
        self.rollouts = state["rollouts"]
        for net, weights in zip(self.members, state["members"], strict=True):
            net.load_state_dict(weights)
