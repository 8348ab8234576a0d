"""Distributions over actions: only what the algorithms need, in few operations. Suffixes: K actions, R rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MASKED = -1e9
"""Logit of an action that is not allowed: its probability is exactly 0 in float32, and 0 * log_prob stays 0."""


def softmax(logits: Tensor) -> Tensor:
    """(..., K) -> (..., K) float32: softmax of the last axis.

    Runs along the first axis of the transpose: on CPUs PyTorch's softmax of a short last axis is not vectorised and
    takes six times as long.
    """
    return logits.float().flatten(0, -2).t().contiguous().softmax(0).t().view(logits.shape)


def inverse_cdf_sample(probs_KR: Tensor, uniform_R: Tensor) -> Tensor:
    """Inverse of the distribution function: (R,) int64, an index of probability above 0.

    The uniform number is taken down by 2**-22, so that rounding in the sum never reaches the actions behind the last
    one that has a probability.
    """
    cumulative_KR = probs_KR.cumsum(0)
    point_R = uniform_R * cumulative_KR[-1] * (1 - 2.0**-22)
    return (point_R >= cumulative_KR[:-1]).sum(0)


class Categorical:
    """K discrete actions in R rows, computed action-major.

    Attributes:
        log_probs_KR: (K, R) float32.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None):
        """
        Args:
            logits: (R, K), any float type.
            mask: (R, K) bool, True where an action is allowed; at least one in each row.
        """
        logits_KR = logits.float().t().contiguous()
        if mask is not None:
            logits_KR = logits_KR.masked_fill(~mask.t(), MASKED)
        self.log_probs_KR = logits_KR.log_softmax(0)

    def sample(self, uniform_R: Tensor) -> Tensor:
        """(R,) uniform numbers in [0, 1) -> (R,) int64 actions."""
        return inverse_cdf_sample(self.log_probs_KR.exp(), uniform_R)

    def mode(self) -> Tensor:
        """(R,) int64: the likeliest actions."""
        return self.log_probs_KR.argmax(0)

    def log_prob(self, action_R: Tensor) -> Tensor:
        """(R,) int64 -> (R,) float32."""
        return self.log_probs_KR.gather(0, action_R.unsqueeze(0)).squeeze(0)

    def entropy(self) -> Tensor:
        """(R,) float32, in nats."""
        return -(self.log_probs_KR.exp() * self.log_probs_KR).sum(0)


class DiagGaussian:
    """Independent normal actions (R, D)."""

    def __init__(self, mean: Tensor, log_std: Tensor):
        """
        Args:
            mean: (R, D).
            log_std: (D,) or (R, D).
        """
        self.mean, self.log_std = mean.float(), log_std.float()

    def sample(self, normal: Tensor) -> Tensor:
        """(R, D) standard normal numbers -> (R, D) actions; differentiable."""
        return torch.addcmul(self.mean, self.log_std.exp().expand_as(self.mean), normal)

    def log_prob(self, action: Tensor) -> Tensor:
        """(R, D) -> (R,)."""
        scaled = (action - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * scaled.square() - self.log_std).sum(-1) - 0.5 * math.log(2 * math.pi) * self.mean.shape[-1]

    def entropy(self) -> Tensor:
        """(R,) float32, in nats."""
        per_axis = self.log_std + 0.5 * math.log(2 * math.pi * math.e)
        return per_axis.sum(-1).expand(self.mean.shape[0])
