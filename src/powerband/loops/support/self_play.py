"""Self-play: a pool of past selves, so that the newest policy cannot forget how to beat the old ones."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn


class OpponentPool:
    """Snapshots of a network, each playing an equal share of the environments that face the pool.

    Half of the pool are the newest snapshots; of those that fall out of that half every second is kept, so that the
    other half reaches further back than the pool is large.

    Args:
        net: The network that is learning.
        act_fn: ``act_fn(net, obs) -> action``: how a snapshot plays.
        size: Snapshots kept, at least 1. At first all of them are the untrained network.
        interval: Rollouts between two snapshots, at least 1.

    Raises:
        ValueError: A number below 1.
    """

    def __init__(self, net: nn.Module, act_fn: Callable[[nn.Module, Tensor], Tensor], size: int, interval: int) -> None:
        if size < 1 or interval < 1:
            raise ValueError(f"pool_size={size} and snapshot_interval={interval} must be 1 or more.")
        self.net, self.act_fn, self.interval = net, act_fn, interval
        self.members = [copy.deepcopy(net).requires_grad_(False) for _ in range(size)]
        self.rollouts = 0

    def after_update(self) -> None:
        """Counts a rollout and takes a snapshot where one is due."""
        self.rollouts += 1
        if self.rollouts % self.interval == 0:
            self.snapshot()

    def snapshot(self) -> None:
        """Puts the network as it is now into the pool."""
        recent = (len(self.members) + 1) // 2
        skips = (self.rollouts // self.interval) % 2
        reused = self.members.pop(recent - 1 if skips else len(self.members) - 1)
        reused.load_state_dict(self.net.state_dict())
        self.members.insert(0, reused)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Actions for observations (n, ...); member m plays the m-th of equal parts of the rows."""
        parts = torch.tensor_split(obs, len(self.members))
        return torch.cat([self.act_fn(net, part) for net, part in zip(self.members, parts, strict=True) if len(part)])

    def state_dict(self) -> dict:
        return {"rollouts": self.rollouts, "members": [dict(net.state_dict()) for net in self.members]}

    def load_state_dict(self, state: dict) -> None:
        self.rollouts = state["rollouts"]
        for net, weights in zip(self.members, state["members"], strict=True):
            net.load_state_dict(weights)
