"""Rollout: storage of on-policy transitions, its mini-batches, advantages and returns.

The axes are T steps, N environments and, in multi-agent environments, A agents. Flags broadcast over agents.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.noise import Noise
from powerband.data.types import Tree, broadcast_rows, tree_leaves, tree_map


class Rollout:
    """Steps of several environments, in memory that is allocated once.

    Attributes:
        data: Name -> tree of tensors (T, N, ...).
    """

    def __init__(
        self, num_steps: int, num_envs: int, device: torch.device | str, fields: dict[str, Tree] | None = None
    ):
        """
        Args:
            num_steps: Number of steps T.
            num_envs: Number of environments N on this rank.
            device: Device of the storage.
            fields: Name -> tree of `TensorSpec` of one environment and step; None derives them from the first `store`.
        """
        self.num_steps, self.num_envs, self.device = num_steps, num_envs, torch.device(device)
        self.data: dict[str, Tree] = {}
        if fields is not None:
            self.data = tree_map(lambda spec: spec.zeros(num_steps, num_envs, device=self.device), fields)

    def store(self, t: int, values: dict[str, Tree]) -> None:
        """Copies trees with leaves (N, ...) to step t; allocates the storage of new names."""
        for name, tree in values.items():
            if name not in self.data:
                self.data[name] = tree_map(
                    lambda leaf: torch.zeros(self.num_steps, *leaf.shape, dtype=leaf.dtype, device=self.device), tree
                )
            tree_map(lambda storage, value: storage[t].copy_(value), self.data[name], tree)

    def minibatches(
        self, count: int, source: Noise | torch.Generator, sequences: bool = False, carry: Tensor | None = None
    ) -> Iterator[dict[str, Tree]]:
        """Yields every sample once, in `count` mini-batches of equal size; see the function `minibatches`.

        Raises:
            ConfigError: `count` does not divide the number of samples.
        """
        total = self.num_envs if sequences else self.num_steps * self.num_envs
        if total % count:
            unit = "environments (sequences are not split)" if sequences else "samples of the rollout"
            raise ConfigError(f"{count} mini-batches do not divide {total} {unit}. Choose a divisor of {total}.")
        return minibatches(self.data, total // count, source, sequences, carry)


def minibatches(
    data: dict[str, Tree],
    size: int,
    source: Noise | torch.Generator,
    sequences: bool = False,
    carry: Tensor | None = None,
) -> Iterator[dict[str, Tree]]:
    """Yields every sample of `data` once, in random order; the last mini-batch may be smaller than the others.

    Args:
        data: Name -> tree of tensors (T, N, ...).
        size: Samples per mini-batch.
        source: Noise with one id per sample, or a generator on the CPU or the device.
        sequences: A sample is the sequence of one environment, and mini-batches are (T, n, ...) instead of (n, ...).
        carry: Carry before the first step (N, ...). Mini-batches of sequences then contain its rows as "carry", and
            "starts" (T, n) bool, the steps that begin an episode; `data` must have terminated and truncated.
    """
    first = tree_leaves(data)[0]
    total = first.shape[1] if sequences else first.shape[0] * first.shape[1]
    if isinstance(source, Noise):
        assert source.keys.numel() == total, "a shuffle needs one noise id per sample"
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
    """(T, N) bool of T steps and N environments: the previous step `ended` an episode.

    Step 0 is False, because it continues from the given carry.
    """
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
    """Computes generalised advantage estimates.

    Args:
        reward: Rewards (T, N) or (T, N, A) float32 of T steps, N environments and A agents.
        value: Values of the observations, shaped like reward.
        next_value: Values of `Step.next_obs`, shaped like reward.
        terminated: (T, N) bool: no bootstrap.
        truncated: (T, N) bool: bootstraps from next_value, and the trace ends.
        gamma: Discount per step.
        gae_lambda: Decay of the trace.

    Returns:
        Advantages, and returns (advantage + value), shaped like reward.

    Source: Schulman et al. 2016, equations 11 to 16.
    """
    not_terminated = broadcast_rows(~terminated, reward).to(reward.dtype)
    decay = broadcast_rows(~(terminated | truncated), reward).to(reward.dtype) * (gamma * gae_lambda)
    advantages = torch.addcmul(reward - value, next_value, not_terminated, value=gamma)
    for t in range(reward.shape[0] - 2, -1, -1):
        advantages[t].addcmul_(decay[t], advantages[t + 1])
    return advantages, advantages + value


def lambda_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, td_lambda: float
) -> Tensor:
    """Computes TD(lambda) returns of T steps, N environments and A agents: G = r + gamma ((1 - lambda) V' + lambda G').

    The returns are shaped like reward. V' replaces G' at a truncation and at the last step.

    Args:
        reward, next_value, terminated, truncated, gamma: As in `gae`.
        td_lambda: 0 gives one-step returns, 1 gives Monte Carlo returns with a bootstrap at the end of the data.

    Source: Sutton and Barto 2018, equation 12.20.
    """
    discount = broadcast_rows(~terminated, reward).to(reward.dtype) * gamma
    decay = broadcast_rows(~(terminated | truncated), reward).to(reward.dtype) * td_lambda
    decay[-1] = 0
    returns = torch.addcmul(reward, discount * (1 - decay), next_value)
    trace = discount * decay
    for t in range(reward.shape[0] - 2, -1, -1):
        returns[t].addcmul_(trace[t], returns[t + 1])
    return returns
