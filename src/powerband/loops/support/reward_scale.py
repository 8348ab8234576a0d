"""RewardScale: clips rewards, or divides them by the running deviation of the discounted return, for the learner."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.core.ranks.ranks import Ranks
from powerband.data.types import Step, broadcast_rows
from powerband.nets.observations.normalise import RunningNorm

MAX_SCALED = 10.0
"""Largest absolute reward after normalisation."""


class RewardScale:
    """Scales the rewards of N environments on this rank. Metrics and evaluations count unscaled rewards.

    With `normalize`, rewards are divided by the standard deviation of the discounted sum of past rewards. This
    deviation covers all ranks and is constant within a rollout. Source: Engstrom et al. 2020, "Implementation Matters
    in Deep RL".

    Args:
        ranks: Ranks over which the standard deviation is computed.
        like: Rewards of one step (N,) or (N, A agents), for their shape and device.
        gamma: Discount per step.
        normalize: Divide by the running standard deviation.
        clip: Largest absolute reward, applied before the division; 0 clips nothing.
    """

    def __init__(self, ranks: Ranks, like: Tensor, gamma: float, normalize: bool, clip: float) -> None:
        self.ranks, self.gamma, self.normalize, self.clip = ranks, gamma, normalize, clip
        self.norm = RunningNorm(1).to(like.device)
        self.returns = torch.zeros_like(like)
        self._rollout: list[Tensor] = []

    def __call__(self, step: Step) -> Tensor:
        """Returns the rewards of `step` for the learner, with the same shape."""
        reward = step.reward.clamp(-self.clip, self.clip) if self.clip else step.reward
        if not self.normalize:
            return reward
        self.add(reward, step.ended)
        return (reward * self.factor).clamp(-MAX_SCALED, MAX_SCALED)

    @property
    def factor(self) -> Tensor:
        """1 / the running deviation of the discounted return (1,)."""
        return torch.rsqrt(self.norm.var + 1e-8)

    def add(self, reward: Tensor, ended: Tensor) -> None:
        """Adds the rewards of a step to the discounted returns, which end where `ended` (N,) is True."""
        self.returns = self.returns * self.gamma + reward
        self._rollout.append(self.returns)
        self.returns = self.returns * broadcast_rows(~ended, self.returns)

    def discard(self, lost: Tensor) -> None:
        """Sets the discounted return to 0 where `lost` (N,) is True, because a new episode has begun there."""
        self.returns = self.returns * broadcast_rows(~lost.to(self.returns.device), self.returns)

    def after_rollout(self) -> None:
        """Adds the discounted returns since the last call to the statistics. All ranks must call it together."""
        if self._rollout:
            rows = torch.stack(self._rollout).reshape(-1, 1)
            self.norm.update_statistics(rows, self.ranks.average_, self.ranks.world_size)
            self._rollout.clear()

    def state_dict(self) -> dict:
        """Returns the statistics and the discounted return of each environment."""
        return {"returns": self.returns, **self.norm.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict`."""
        self.returns = state["returns"].to(self.returns.device)
        self.load_statistics(state)

    def load_statistics(self, state: dict) -> None:
        """Restores the statistics, which are equal on all ranks, from a result of `state_dict` of any rank."""
        self.norm.load_state_dict({name: state[name] for name in ("mean", "var", "count")})
