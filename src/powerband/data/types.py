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
    """Applies `fn` to every leaf of `tree` and to the leaves of `rest` with the same keys; keeps the structure."""
    if isinstance(tree, dict):
        return {key: tree_map(fn, value, *(other[key] for other in rest)) for key, value in tree.items()}
    return fn(tree, *rest)


def tree_cat(trees: list[Tree]) -> Tree:
    """Concatenates the rows of several trees."""
    return tree_map(lambda *leaves: torch.cat(leaves), *trees)


def tree_leaves(tree: Tree) -> list[Any]:
    """Returns the leaves of `tree` in the order of its keys."""
    return [leaf for _, leaf in tree_paths(tree)]


def tree_paths(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields ``("a/b", leaf)`` for every leaf; a bare leaf has the path `prefix`."""
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
    """Observations, actions and properties of one environment; shapes have no environment axis."""

    obs: Tree
    action: TensorSpec
    num_actions: int | None = None
    """Number of discrete actions; None for a continuous action."""
    low: Tensor | None = None
    high: Tensor | None = None
    """Bounds of a continuous action, with the shape of one action."""
    num_agents: int | None = None
    """Length of the agent axis; None without this axis."""
    max_episode_steps: int | None = None
    resume: ResumeLevel = "truncated"
    """Level of a resume: `exact` state, `replayed` actions of the current episodes, or episodes are `truncated`."""
    overlappable: bool = False
    """True if updates can run between `send` and `recv`, because the simulator runs in other processes."""


@dataclass
class Step:
    """One step of every environment after autoreset: each row that is not lost is a real transition.

    Attributes:
        obs: Tree (N, ...): current observations, the first of a new episode in rows that ended.
        reward: (N,) or (N, A) float32, one per environment or per agent.
        terminated: (N,) bool: the task ended; no bootstrap.
        truncated: (N,) bool: a limit cut the episode; bootstrap from `final_obs`.
        final_obs: Tree (N, ...): last observations, valid in rows that ended; None if no row ended.
        episode: Metrics of episodes ("success", "win", ...), (N,) float32 each, valid in rows that ended.
        lost: (N,) bool: rows whose simulator failed in this step; None if none did. They count as truncated and begin a
            new episode, but are no transitions, and learners must not use them.
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
        """(N,) bool: the row's episode ended with this transition."""
        return self.terminated | self.truncated

    @classmethod
    def concatenate(cls, parts: list[Step]) -> Step:
        """Concatenates the rows of several steps."""
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
        """Tree (N, ...): the observations after the transitions; in rows that ended, the last of the episode."""
        if self.final_obs is None:
            return self.obs
        return tree_map(
            lambda obs, final: torch.where(broadcast_rows(self.ended, obs), final, obs), self.obs, self.final_obs
        )


def broadcast_rows(mask: Tensor, like: Tensor) -> Tensor:
    """Views `mask` (N,) as (N, 1, ...) so that it broadcasts over the rows of `like` (N, ...)."""
    return mask.view(mask.shape + (1,) * (like.dim() - mask.dim()))


class EnvHalf(Protocol):
    """The environments `rows` of a `VecEnv`, which can be stepped independently of its other environments."""

    rows: slice

    def send(self, action: Tensor) -> None: ...
    def recv(self) -> Step: ...


@runtime_checkable
class VecEnv(Protocol):
    """N environments stepped together. `send` and `recv` are separate, so that updates can run while simulators step.

    `reset`, `observe` and `recv` may return alternating buffers. A result is valid until the second of these calls
    after it; copy it to keep it longer. After `load_state_dict`, `observe` returns the current observations.

    Attributes:
        resumed: (N,) bool: rows whose episode continued after `load_state_dict`.
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
        """Measurements of worker processes, such as seconds per step; empty without worker processes."""

    def state_dict(self) -> dict: ...
    def load_state_dict(self, state: dict) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class OfflineLearner(Protocol):
    """An algorithm that learns from batches, for the offline loop.

    Attributes:
        config: Frozen dataclass with the settings; error messages name its learning rates and limits.
    """

    config: Any

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Updates on a batch. Returns its metrics: 0-d tensors on the device, without host-device synchronisation."""

    def state_dict(self) -> dict:
        """Returns the state of the training: the tensors themselves and numbers, no copies."""

    def load_state_dict(self, state: dict) -> None:
        """Restores `state_dict` in place."""


@runtime_checkable
class Learner(OfflineLearner, Protocol):
    """An algorithm that acts on observations and learns from batches. It never sees an environment.

    Attributes:
        lr: Learning rate. Assigning it scales all learning rates in proportion; loops anneal it.
        cycle: Repeating sequence of update kinds, for example an actor update at every second update.
    """

    cycle: UpdateCycle

    @property
    def lr(self) -> float | Tensor: ...
    @lr.setter
    def lr(self, lr: float) -> None: ...

    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Chooses actions.

        Args:
            obs: Tree (N, ...).
            carry: Recurrent state (N, ...); None without one. The loop zeroes its rows when an episode ends.
            explore: Sample actions; otherwise choose the best ones.

        Returns:
            Actions (N, ...); name -> values (N, ...) that the loop stores with the transitions; the next carry or None.
        """

    def initial_carry(self, num_envs: int) -> Tensor | None:
        """Returns the recurrent state of new episodes (num_envs, ...); None without one."""

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the tensors of the exported policy."""


@runtime_checkable
class OnPolicyLearner(Learner, Protocol):
    """A learner that updates on rollouts."""

    def after_rollout(self, obs: Tree) -> None:
        """Processes the observations (T steps, N environments, ...) of a rollout after its updates, for statistics."""


@runtime_checkable
class ValueLearner(OnPolicyLearner, Protocol):
    """A learner that estimates state values, for advantage estimation."""

    def value(self, obs: Tree, carry: Tensor | None) -> Tensor:
        """Returns the values of observations, one per environment (N,) or per agent (N, A); `carry` as in `act`."""


@runtime_checkable
class EpochLearner(OnPolicyLearner, Protocol):
    """A learner that can update on all mini-batches of an epoch in one call, which saves the overhead of small ones."""

    def updates_epochs(self, rows: int) -> bool:
        """Returns whether `update_epoch` supports mini-batches of `rows` rows; otherwise the loop calls `update`."""

    def update_epoch(self, data: dict[str, Tree], order: Tensor, size: int) -> dict[str, Tensor]:
        """Updates on each mini-batch of `size` rows of a rollout (T, N, ...), in the order (T * N,) of its rows.

        Returns the means of the metrics over the mini-batches, as `update` returns them.
        """


@runtime_checkable
class TargetLearner(OnPolicyLearner, Protocol):
    """A learner that computes its own targets from rollouts of complete episodes."""

    def targets(self, data: dict[str, Tree], gamma: float, td_lambda: float) -> dict[str, Tree]:
        """Returns name -> tree of mini-batch data from a rollout of T steps and N environments (T, N, ...)."""
