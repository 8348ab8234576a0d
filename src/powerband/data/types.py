"""Types: trees of tensors, steps of environments, and the protocols of environments and learners.

An observation is a tensor or a (nested) dict of tensors whose first axis is the environment. In multi-agent
environments, the second axis is the agent. Two keys of a dict observation are reserved: ``state``, the input of a
central critic, and ``action_mask`` (bool, True for allowed actions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from powerband.core.schedule import UpdateCycle

Tree = Any  # Tensor | TensorSpec | dict[str, "Tree"]
ResumeLevel = Literal["exact", "replayed", "truncated"]


def tree_map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Applies a function to every leaf of a tree, which is a single leaf or a nested dict of leaves.

    Args:
        fn: Function of one leaf of `tree` and the leaves of `rest` at the same keys.
        tree: Tree of tensors or other values.
        rest: Further trees, which have at least the keys of `tree`.

    Returns:
        Tree of the results, with the keys of `tree`.
    """
    if isinstance(tree, dict):
        return {key: tree_map(fn, value, *(other[key] for other in rest)) for key, value in tree.items()}
    return fn(tree, *rest)


def tree_cat(trees: list[Tree]) -> Tree:
    """Concatenates tensors, or nested dicts of tensors with the same keys, along the first axis of each tensor."""
    return tree_map(lambda *leaves: torch.cat(leaves), *trees)


def tree_leaves(tree: Tree) -> list[Any]:
    """Returns the leaves of a nested dict in the order of its keys; a tree that is a single leaf gives [leaf]."""
    return [leaf for _, leaf in tree_paths(tree)]


def tree_paths(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, leaf) for every leaf of a nested dict, with paths such as ``a/b`` after `prefix`.

    A tree that is a single leaf has the path `prefix`.
    """
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from tree_paths(value, f"{prefix}/{key}" if prefix else key)
    else:
        yield prefix, tree


@dataclass(frozen=True)
class TensorSpec:
    """Shape (without the environment axis) and dtype of one tensor.

    Attributes:
        categories: Number of values of each entry, in flat order, if the entries are categories counted from 0.
        high: Largest value of an image; None for other tensors and for images in 0..1.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    categories: tuple[int, ...] = ()
    high: float | None = None

    def zeros(self, *leading: int, device: torch.device | str = "cpu") -> Tensor:
        """Returns a zero tensor of shape ``(*leading, *shape)``."""
        return torch.zeros(*leading, *self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class EnvSpec:
    """Observations, actions and properties of one environment; shapes have no environment axis.

    Attributes:
        obs: `TensorSpec` or nested dict of them: the observations.
        action: Shape and type of one action, including the agent axis if there is one.
        max_episode_steps: Steps after which episodes are truncated; None without a limit.
    """

    obs: Tree
    action: TensorSpec
    num_actions: int | None = None
    """Number of discrete actions; None for a continuous action. With `action_heads`, the sum of the choices, which is
    the width of logits and masks."""
    low: Tensor | None = None
    high: Tensor | None = None
    """Bounds of a continuous action, with the shape of one action."""
    num_agents: int | None = None
    """Length of the agent axis; None without this axis."""
    max_episode_steps: int | None = None
    resume: ResumeLevel = "truncated"
    """What a checkpoint restores of unfinished episodes. `exact`: their state. `replayed`: their actions are repeated.
    `truncated`: nothing, so new episodes start."""
    overlappable: bool = False
    """True if updates can run between `send` and `recv`, because the simulator runs in other processes."""
    action_heads: tuple[int, ...] = ()
    """Number of choices of each entry of an action (D,) int64 of D discrete entries; empty for other actions."""
    recv_limit_s: float = 0.0
    """Seconds after which `recv` replaces simulators that do not answer; 0 if it does not."""


@dataclass
class Step:
    """Result of one step of N environments, after an automatic reset of those whose episode ended.

    A row is one environment. Every row that is not `lost` is a real transition. Observations are tensors or nested
    dicts of tensors.

    Attributes:
        obs: Current observations (N, ...); in rows whose episode ended, the first ones of the new episode.
        reward: Rewards (N,), or (N, A) for A agents, float32.
        terminated: (N,) bool, True if the task ended: the value of the next state is 0.
        truncated: (N,) bool, True if a limit cut the episode: learners bootstrap from `final_obs`.
        final_obs: Last observations (N, ...) of episodes, valid in rows that ended; None if no row ended.
        episode: Metrics of episodes by name, such as ``success``; (N,) float32 each, valid in rows that ended.
        lost: (N,) bool, True for rows whose simulator failed in this step; None if no simulator failed. These rows
            count as truncated and begin a new episode, but are no transitions, and learners must not use them.
    """

    obs: Tree
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Tree | None = None
    episode: dict[str, Tensor] = field(default_factory=dict)
    lost: Tensor | None = None

    @property
    def ended(self) -> Tensor:
        """Mask (N,) bool of the environments whose episode ended in this step, by termination or truncation."""
        return self.terminated | self.truncated

    @classmethod
    def concatenate(cls, parts: list[Step]) -> Step:
        """Joins the steps of several groups of environments to one step of all of them."""
        assert all(set(part.episode) == set(parts[0].episode) for part in parts)

        def rows(name: str) -> Tensor:
            return torch.cat([getattr(part, name) for part in parts])

        ended, lost = (any(getattr(part, name) is not None for part in parts) for name in ("final_obs", "lost"))
        final_obs = [part.obs if part.final_obs is None else part.final_obs for part in parts]
        lost_rows = [torch.zeros_like(part.truncated) if part.lost is None else part.lost for part in parts]
        return cls(
            obs=tree_cat([part.obs for part in parts]),
            reward=rows("reward"),
            terminated=rows("terminated"),
            truncated=rows("truncated"),
            final_obs=tree_cat(final_obs) if ended else None,
            episode={name: torch.cat([part.episode[name] for part in parts]) for name in parts[0].episode},
            lost=torch.cat(lost_rows) if lost else None,
        )

    def next_obs(self) -> Tree:
        """Returns the observations (N, ...) after the transitions, which are the last ones of episodes that ended."""
        if self.final_obs is None:
            return self.obs
        return tree_map(
            lambda obs, final: torch.where(broadcast_rows(self.ended, obs), final, obs), self.obs, self.final_obs
        )


def broadcast_rows(mask: Tensor, like: Tensor) -> Tensor:
    """Views `mask` (N,) as (N, 1, ...) so that it broadcasts over the rows of `like` (N, ...)."""
    return mask.view(mask.shape + (1,) * (like.dim() - mask.dim()))


class EnvHalf(Protocol):
    """A part of the environments of a `VecEnv` that can be stepped independently of the others.

    Attributes:
        rows: Indices of these environments in the `VecEnv`.
    """

    rows: slice

    def send(self, action: Tensor) -> None: ...
    def recv(self) -> Step: ...


@runtime_checkable
class VecEnv(Protocol):
    """N environments that are stepped together and reset automatically when an episode ends.

    `send` starts a step and `recv` returns its result, so that updates can run while simulators step; `step` does both.
    `reset`, `observe` and `recv` may return alternating buffers. A result is valid until the second of these calls
    after it; copy it to keep it longer. After `load_state_dict`, `observe` returns the current observations.

    Attributes:
        num_envs: N.
        device: Device of observations, actions and rewards.
        spec: Observations, actions and properties of one environment.
        resumed: (N,) bool, True for environments whose episode continued after `load_state_dict`.
        halves: Two halves that can be stepped independently, for double buffering; empty if the environments cannot be
            split.
    """

    num_envs: int
    device: torch.device
    spec: EnvSpec
    resumed: Tensor

    @property
    def halves(self) -> Sequence[EnvHalf]: ...
    def reset(self, seed: int | None = None) -> Tree: ...
    def observe(self) -> Tree: ...
    def send(self, action: Tensor) -> None: ...
    def recv(self) -> Step: ...
    def step(self, action: Tensor) -> Step: ...
    def worker_statistics(self) -> dict[str, Any]:
        """Returns measurements of worker processes by name, such as seconds per step; empty without such processes."""

    def state_dict(self) -> dict: ...
    def load_state_dict(self, state: dict) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class OfflineLearner(Protocol):
    """An algorithm that learns from batches of recorded data, without environments.

    Attributes:
        config: Frozen dataclass with the settings; error messages name its learning rates and limits.
    """

    config: Any

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Takes one optimiser step on a batch, without waiting for the device.

        Args:
            batch: Name -> tensor or nested dict of tensors (rows, ...).

        Returns:
            Losses and statistics by name, 0-d tensors on the device.
        """

    def state_dict(self) -> dict:
        """Returns the complete training state for a checkpoint: the tensors themselves, not copies, and numbers."""

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict` in place."""


@runtime_checkable
class Learner(OfflineLearner, Protocol):
    """An algorithm that acts on observations and learns from batches. It never sees an environment.

    Attributes:
        lr: Learning rate. Assigning it scales all learning rates in proportion; loops anneal it.
        cycle: Counter of the position in a repeating sequence of updates, such as critic, then critic and actor.
    """

    cycle: UpdateCycle

    @property
    def lr(self) -> float | Tensor: ...
    @lr.setter
    def lr(self, lr: float) -> None: ...

    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Chooses actions.

        Args:
            obs: Observations of N environments, a tensor or nested dict of tensors (N, ...).
            carry: Recurrent state (N, ...); None if the policy has none. The loop sets its rows to zero when an episode
                ends.
            explore: Sample actions; otherwise choose the best ones.

        Returns:
            Actions (N, ...); a dict of values (N, ...) that the loop stores with the transitions; the next
            recurrent state, None if the policy has none.
        """

    def initial_carry(self, num_envs: int) -> Tensor | None:
        """Returns the recurrent state of new episodes (num_envs, ...); None if the policy has none."""

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the tensors that a policy file needs for acting, by name."""


@runtime_checkable
class StatisticsLearner(Learner, Protocol):
    """A learner with running statistics of the collected observations, which the off-policy loop updates."""

    def update_statistics(self, obs: Tree) -> None:
        """Adds the observations (N, ...) before a step to the statistics, on all ranks at the same time."""


@runtime_checkable
class PrioritizedLearner(Learner, Protocol):
    """A learner for prioritised replay: `update` multiplies losses of rows by ``batch["weight"]`` (B,), if given."""

    @property
    def errors(self) -> Tensor:
        """Absolute errors (B,) of the rows of the newest update, from which their priorities follow."""


@runtime_checkable
class OnPolicyLearner(Learner, Protocol):
    """A learner that updates on rollouts, the steps that its current policy has just collected."""

    def after_rollout(self, obs: Tree) -> None:
        """Updates running statistics, such as those that normalise observations, after the updates of a rollout.

        Args:
            obs: Observations (T, N, ...) of T steps and N environments.
        """


@runtime_checkable
class ScheduledLearner(OnPolicyLearner, Protocol):
    """A learner whose coefficients change during training."""

    def set_progress(self, progress: float) -> None:
        """Sets the coefficients for the next rollout; `progress` is the spent share of the budget, 0..1."""


@runtime_checkable
class ValueLearner(OnPolicyLearner, Protocol):
    """A learner that estimates state values, for advantage estimation."""

    def value(self, obs: Tree, carry: Tensor | None) -> Tensor:
        """Computes the state values of observations (N, ...) of N environments.

        `carry` is the recurrent state, as in `act`. Returns values (N,), or (N, A) for A agents.
        """


@runtime_checkable
class EpochLearner(OnPolicyLearner, Protocol):
    """A learner that can update on all mini-batches of an epoch in one call, which saves the overhead of small ones."""

    def updates_epochs(self, rows: int) -> bool:
        """Returns whether `update_epoch` supports mini-batches of `rows` samples; otherwise the loop calls `update`."""

    def update_epoch(self, data: dict[str, Tree], order: Tensor, size: int) -> dict[str, Tensor]:
        """Makes one update per mini-batch, for all mini-batches of a rollout of T steps and N environments.

        Args:
            data: Name -> tensor or nested dict of tensors (T, N, ...).
            order: Order (T * N,) int64 in which the samples (one step of one environment each) are used.
            size: Samples per mini-batch.

        Returns:
            Losses and statistics by name, means over the mini-batches, 0-d tensors on the device.
        """


@runtime_checkable
class TargetLearner(OnPolicyLearner, Protocol):
    """A learner that computes the targets of its updates itself, from rollouts of complete episodes."""

    def targets(self, data: dict[str, Tree], gamma: float, td_lambda: float) -> dict[str, Tree]:
        """Computes the samples for updates, including their targets, from a rollout.

        Args:
            data: Name -> tensor or nested dict of tensors (T, N, ...) of T steps and N environments.
            gamma: Discount per step.
            td_lambda: Lambda of TD(lambda) or of generalised advantage estimation, 0 to 1.

        Returns:
            Name -> tensor or nested dict of tensors (T, samples per step, ...), from which mini-batches are drawn.
        """
