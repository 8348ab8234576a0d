"""Distributions over actions, computed in few operations. Shapes: K actions, R rows, D dimensions of an action."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MASKED = -1e9
"""Logit of a forbidden action. Its probability is exactly 0 in float32, and 0 * log_prob is 0."""


def softmax(logits: Tensor) -> Tensor:
    """Computes the softmax of `logits` (..., K) in float32 along the last axis, over K actions.

    It runs along the first axis of the transpose: on CPUs, the softmax of PyTorch over a short last axis is not
    vectorised and takes six times as long.
    """
    return logits.float().flatten(0, -2).t().contiguous().softmax(0).t().view(logits.shape)


def inverse_cdf_sample(probs_KR: Tensor, uniform_R: Tensor) -> Tensor:
    """Samples one index per row from given probabilities, by the inverse distribution function.

    The factor 1 - 2**-22 on the uniform number prevents rounding from selecting an action of probability 0 at the end.

    Args:
        probs_KR: Probabilities (K, R) of K indices in R rows.
        uniform_R: Uniform random numbers (R,) in [0, 1).

    Returns:
        Indices (R,) int64 in 0..K-1.
    """
    cumulative_KR = probs_KR.cumsum(0)
    point_R = uniform_R * cumulative_KR[-1] * (1 - 2.0**-22)
    return (point_R >= cumulative_KR[:-1]).sum(0)


def uniform_actions(uniform: Tensor, num_actions: int, mask: Tensor | None = None) -> Tensor:
    """Converts uniform random numbers (...) in [0, 1) to uniformly distributed discrete actions (...) int64.

    `mask` (..., num_actions) is True for the allowed actions, at least one per row; None allows all.
    """
    if mask is None:
        return (uniform * num_actions).long().clamp(max=num_actions - 1)
    return inverse_cdf_sample(mask.float().flatten(0, -2).t(), uniform.flatten()).view(uniform.shape)


class Categorical:
    """Categorical distributions over K discrete actions, one per row of R rows.

    Attributes:
        log_probs_KR: Log-probabilities (K, R) float32; the first axis is the action, for speed on CPUs.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None):
        """
        Args:
            logits: Unnormalised log-probabilities (R, K) of R rows and K actions.
            mask: Bools (R, K), True for allowed actions, at least one per row; None allows all actions.
        """
        logits_KR = logits.float().t().contiguous()
        if mask is not None:
            logits_KR = logits_KR.masked_fill(~mask.t(), MASKED)
        self.log_probs_KR = logits_KR.log_softmax(0)

    def sample(self, uniform_R: Tensor) -> Tensor:
        """Samples actions (R,) int64 by means of uniform random numbers (R,) in [0, 1), one per row."""
        return inverse_cdf_sample(self.log_probs_KR.exp(), uniform_R)

    def mode(self) -> Tensor:
        """Returns the likeliest actions (R,) int64."""
        return self.log_probs_KR.argmax(0)

    def log_prob(self, action_R: Tensor) -> Tensor:
        """Computes log-probabilities (R,) float32 of actions (R,) int64."""
        return self.log_probs_KR.gather(0, action_R.unsqueeze(0)).squeeze(0)

    def entropy(self) -> Tensor:
        """Computes entropies (R,) float32 in nats."""
        return -(self.log_probs_KR.exp() * self.log_probs_KR).sum(0)


class MultiCategorical:
    """Distributions over actions of D discrete entries (heads), which are independent given the observation.

    The log-probability of an action and the entropy are sums over the heads.
    """

    def __init__(self, logits: Tensor, heads: tuple[int, ...], mask: Tensor | None = None):
        """
        Args:
            logits: Unnormalised log-probabilities (R, K) of R rows; K is the number of choices of all heads together.
            heads: Number of choices of each of D heads.
            mask: Bools (R, K), True for allowed choices, at least one per row and head; None allows all.
        """
        masks = [None] * len(heads) if mask is None else mask.split(heads, 1)
        self.parts = [Categorical(*pair) for pair in zip(logits.split(heads, 1), masks, strict=True)]

    def sample(self, uniform: Tensor) -> Tensor:
        """Samples actions (R, D) int64 by means of uniform random numbers (R, D) in [0, 1)."""
        return torch.stack([part.sample(u) for part, u in zip(self.parts, uniform.unbind(1), strict=True)], 1)

    def mode(self) -> Tensor:
        """Returns the likeliest actions (R, D) int64."""
        return torch.stack([part.mode() for part in self.parts], 1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Computes log-probabilities (R,) float32 of actions (R, D) int64."""
        return torch.stack([part.log_prob(a) for part, a in zip(self.parts, action.unbind(1), strict=True)]).sum(0)

    def entropy(self) -> Tensor:
        """Computes entropies (R,) float32 in nats."""
        return torch.stack([part.entropy() for part in self.parts]).sum(0)


class DiagGaussian:
    """Normal distributions of actions (R, D) with independent entries, for R rows and D entries of an action."""

    def __init__(self, mean: Tensor, log_std: Tensor):
        """
        Args:
            mean: Means (R, D) of R rows and D entries of an action.
            log_std: Log standard deviations (D,) or (R, D).
        """
        self.mean, self.log_std = mean.float(), log_std.float()

    def sample(self, normal: Tensor) -> Tensor:
        """Computes actions (R, D) from standard normal numbers (R, D); differentiable."""
        return torch.addcmul(self.mean, self.log_std.exp().expand_as(self.mean), normal)

    def mode(self) -> Tensor:
        """Returns the likeliest actions (R, D), which are the means."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Computes log-densities (R,) of actions (R, D)."""
        scaled = (action - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * scaled.square() - self.log_std).sum(-1) - 0.5 * math.log(2 * math.pi) * self.mean.shape[-1]

    def entropy(self) -> Tensor:
        """Computes entropies (R,) float32 in nats."""
        per_axis = self.log_std + 0.5 * math.log(2 * math.pi * math.e)
        return per_axis.sum(-1).expand(self.mean.shape[0])
