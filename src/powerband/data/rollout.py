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
    """Storage of the last T steps of N environments, in memory that is allocated once.

    Attributes:
        data: Name -> tensor or nested dict of tensors (T, N, ...).
    """

    def __init__(
        self, num_steps: int, num_envs: int, device: torch.device | str, fields: dict[str, Tree] | None = None
    ):
        """
        Args:
        num_steps: Number of steps T.
        num_envs: Number of environments N on this rank.
        device: Device of the storage.
        fields: Name -> `TensorSpec` or nested dict of them, for one environment and step. Memory for
            names that are missing here is allocated at the first `store`; None allocates all of it then.
        """
        self.num_steps, self.num_envs, self.device = num_steps, num_envs, torch.device(device)
        self.data: dict[str, Tree] = {}
        if fields is not None:
            self.data = tree_map(lambda spec: spec.zeros(num_steps, num_envs, device=self.device), fields)

    def store(self, t: int, values: dict[str, Tree]) -> None:
        """Copies the values of one step to the storage.

        Args:
            t: Index of the step, from 0.
            values: Name -> tensor or nested dict of tensors (N environments, ...). Memory for new names is allocated.
        """
        for name, tree in values.items():
            if name not in self.data:
                self.data[name] = tree_map(
                    lambda leaf: torch.zeros(self.num_steps, *leaf.shape, dtype=leaf.dtype, device=self.device), tree
                )
            tree_map(lambda storage, value: storage[t].copy_(value), self.data[name], tree)

    def minibatches(
        self, count: int, source: Noise | torch.Generator, sequences: bool = False, carry: Tensor | None = None
    ) -> Iterator[dict[str, Tree]]:
        """Yields every sample once, in `count` mini-batches of equal size.

        The other arguments and the mini-batches are those of the function `minibatches`.

        Raises:
            ConfigError: `count` does not divide the number of samples.
        """
        total = self.num_envs if sequences else self.num_steps * self.num_envs
        if total % count:
            unit = "environments (sequences are not split)" if sequences else "samples of the rollout"
            raise ConfigError(
                f"{total} {unit} cannot be split into {count} equal mini-batches. Choose a divisor of {total}."
            )
        return minibatches(self.data, total // count, source, sequences, carry)


def minibatches(
    data: dict[str, Tree],
    size: int,
    source: Noise | torch.Generator,
    sequences: bool = False,
    carry: Tensor | None = None,
) -> Iterator[dict[str, Tree]]:
    """Yields every sample of a rollout once, in mini-batches of random order; the last one may be smaller.

    Args:
        data: Name -> tensor or nested dict of tensors (T, N, ...) of T steps and N environments.
        size: n, samples per mini-batch.
        source: Random numbers: a `Noise` (powerband's generator) with one stream per sample, or a `torch.Generator` on
            the CPU or the device.
        sequences: False: a sample is one step of one environment, and mini-batches are (n, ...). True: a sample is the
            sequence of all steps of one environment, and mini-batches are (T, n, ...).
        carry: Recurrent state (N, ...) before the first step; None if the policy has none. Mini-batches of sequences
            then contain its rows as ``carry``, and ``starts`` (T, n) bool, True at steps that begin an episode. For
            this, `data` must contain ``terminated`` and ``truncated``.
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
    """Marks the steps that begin an episode because the previous step ended one.

    Step 0 is always False, because a recurrent policy continues there from the recurrent state before the rollout.

    Args:
        ended: Bools (T, N) of T steps and N environments, True if the step ended an episode.

    Returns:
        Bools (T, N).
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
        next_value: Values of the observations after each step, shaped like reward; at the end of an episode, of its
            last observation (`Step.next_obs`).
        terminated: Bools (T, N), True if the task ended: `next_value` is not used.
        truncated: Bools (T, N), True if a limit cut the episode: `next_value` is used, but no later reward.
        gamma: Discount per step.
        gae_lambda: Lambda, 0 to 1: decay of the weight of later steps.

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
    """Computes TD(lambda) returns G = r + gamma ((1 - lambda) V' + lambda G').

    V' is the value of the next observation and G' the return of the next step. V' replaces G' at a truncation and at
    the last step; both are 0 at a termination.

    Args:
        reward: Rewards (T, N) or (T, N, A) float32 of T steps, N environments and A agents.
        next_value: V', shaped like reward; at the end of an episode, the value of its last observation.
        terminated: Bools (T, N), True if the task ended.
        truncated: Bools (T, N), True if a limit cut the episode.
        gamma: Discount per step.
        td_lambda: 0 gives one-step returns, 1 gives Monte Carlo returns with a bootstrap at the end of the data.

    Returns:
        Returns, shaped like reward.

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
