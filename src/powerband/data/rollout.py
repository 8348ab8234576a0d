"""Rollout storage for on-policy learning, and the returns that are computed over it.

Axes: T steps, N environments, then agents where there are any. Flags are per environment and broadcast over agents.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from powerband.core.noise import Noise
from powerband.data.types import Tree, broadcast_rows, tree_leaves, tree_map


class Rollout:
    """The last `num_steps` steps of `num_envs` environments, allocated once.

    Attributes:
        data: Name -> tree of tensors (T, N, ...).
    """

    def __init__(
        self, num_steps: int, num_envs: int, device: torch.device | str, fields: dict[str, Tree] | None = None
    ):
        """
        Args:
            num_steps: T.
            num_envs: N, of this rank.
            device: Where the storage lives.
            fields: Name -> tree of `TensorSpec` of one environment and step; None takes them from the first `store`.
        """
        self.num_steps, self.num_envs, self.device = num_steps, num_envs, torch.device(device)
        self.data: dict[str, Tree] = {}
        if fields is not None:
            self.data = tree_map(lambda spec: spec.zeros(num_steps, num_envs, device=self.device), fields)

    def store(self, t: int, values: dict[str, Tree]) -> None:
        """Copies what step t gave: trees with leaves (N, ...). A name seen for the first time is allocated."""
        for name, tree in values.items():
            if name not in self.data:
                self.data[name] = tree_map(
                    lambda leaf: torch.zeros(self.num_steps, *leaf.shape, dtype=leaf.dtype, device=self.device), tree
                )
            tree_map(lambda storage, value: storage[t].copy_(value), self.data[name], tree)

    def minibatches(
        self, count: int, source: Noise | torch.Generator, sequences: bool = False, carry: Tensor | None = None
    ) -> Iterator[dict[str, Tree]]:
        """Yields every sample once in `count` parts of equal size; for the rest see the function `minibatches`.

        Raises:
            ValueError: The samples do not divide by `count`.
        """
        total = self.num_envs if sequences else self.num_steps * self.num_envs
        if total % count:
            what = "environments (sequences are not split)" if sequences else "samples of the rollout"
            raise ValueError(f"{count} mini-batches do not divide {total} {what}; choose a divisor of {total}.")
        return minibatches(self.data, total // count, source, sequences, carry)


def minibatches(
    data: dict[str, Tree],
    size: int,
    source: Noise | torch.Generator,
    sequences: bool = False,
    carry: Tensor | None = None,
) -> Iterator[dict[str, Tree]]:
    """Yields every sample of `data` once, in random order; the last part may be smaller than the others.

    Args:
        data: Name -> tree of tensors (T, N, ...).
        size: Samples in a part.
        source: Noise with one id a sample (a sequence with `sequences`), or a generator on the CPU or the device.
        sequences: Parts are whole environments (T, n, ...) instead of single samples (n, ...).
        carry: (N, ...) the carry before the first step; parts get theirs as "carry", and "starts" (T, n) bool,
            which marks the steps that begin an episode (`data` must hold terminated and truncated).
    """
    first = tree_leaves(data)[0]
    total = first.shape[1] if sequences else first.shape[0] * first.shape[1]
    if isinstance(source, Noise):
        assert source.keys.numel() == total, "a shuffle needs one noise id a sample"
        order = source.permutation()
    else:
        order = torch.randperm(total, generator=source, device=source.device).to(first.device)
    axis = 1
    if sequences:
        if carry is not None:
            data = {**data, "starts": episode_starts(data["terminated"] | data["truncated"])}
    else:
        axis = 0
        data = tree_map(lambda leaf: leaf.flatten(0, 1), data)
    for index in order.split(size):
        part = tree_map(lambda leaf, index=index: leaf.index_select(axis, index), data)
        if sequences and carry is not None:
            part["carry"] = carry.index_select(0, index)
        yield part


def episode_starts(ended: Tensor) -> Tensor:
    """(T, N) bool: the step before ended an episode. Step 0 is False: its carry is the one that is handed over."""
    return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation.

    Args:
        reward: (T, N) or (T, N, A) float32.
        value: Like reward: V(obs) at each step.
        next_value: Like reward: V of the observation each step led to, the episode's last where it ended.
        terminated: (T, N) bool: no bootstrap.
        truncated: (T, N) bool: bootstraps from next_value, and the trace ends.
        gamma: Discount of a step.
        gae_lambda: Decay of the trace.

    Returns:
        Advantages and returns (advantage + value), like reward.

    Source: Schulman et al. 2016, equations 11 to 16.
    """
    goes_on = broadcast_rows(~terminated, reward).to(reward.dtype)
    decay = broadcast_rows(~(terminated | truncated), reward).to(reward.dtype) * (gamma * gae_lambda)
    advantages = torch.addcmul(reward - value, next_value, goes_on, value=gamma)
    for t in range(reward.shape[0] - 2, -1, -1):
        advantages[t].addcmul_(decay[t], advantages[t + 1])
    return advantages, advantages + value


def lambda_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, td_lambda: float
) -> Tensor:
    """TD(lambda) returns, exact at episode ends: G = r + gamma ((1 - lambda) V' + lambda G'), with V' for G' at a cut.

    Args:
        reward, next_value, terminated, truncated, gamma: As in `gae`.
        td_lambda: 0 is one-step, 1 is Monte Carlo with a bootstrap where the data ends.

    Returns:
        (T, N) or (T, N, A) returns.

    Source: Sutton and Barto 2018, equation 12.20.
    """
    goes_on = broadcast_rows(~terminated, reward).to(reward.dtype) * gamma
    keeps = broadcast_rows(~(terminated | truncated), reward).to(reward.dtype) * td_lambda
    keeps[-1] = 0
    returns = torch.addcmul(reward, goes_on * (1 - keeps), next_value)
    trace = goes_on * keeps
    for t in range(reward.shape[0] - 2, -1, -1):
        returns[t].addcmul_(trace[t], returns[t + 1])
    return returns
