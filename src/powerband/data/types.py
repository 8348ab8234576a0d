"""Shapes of what travels: trees of tensors, one environment step, and the two protocols every part is written against.

An observation is a tensor or a (nested) dict of tensors whose first axis is the environment. Multi-agent environments
have the agent axis second. Two keys are reserved in a dict observation: ``state`` (what a central critic sees) and
``action_mask`` (bool, True where an action is allowed).
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
    """Applies `fn` to every leaf of `tree` (and the leaves at the same place in `rest`), keeping its structure."""
    if isinstance(tree, dict):
        return {key: tree_map(fn, value, *(other[key] for other in rest)) for key, value in tree.items()}
    return fn(tree, *rest)


def tree_cat(trees: list[Tree]) -> Tree:
    """One tree with the rows of all of them, in their order."""
    return tree_map(lambda *leaves: torch.cat(leaves), *trees)


def tree_leaves(tree: Tree) -> list[Any]:
    """Leaves of `tree` in the order of its keys."""
    return [leaf for _, leaf in tree_paths(tree)]


def tree_paths(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields ``("a/b", leaf)`` for every leaf; a bare leaf has the path ``prefix``."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from tree_paths(value, f"{prefix}/{key}" if prefix else key)
    else:
        yield prefix, tree


@dataclass(frozen=True)
class TensorSpec:
    """Shape (without the environment axis) and dtype of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def zeros(self, *leading: int, device: torch.device | str = "cpu") -> Tensor:
        """A zero tensor of shape ``(*leading, *shape)``."""
        return torch.zeros(*leading, *self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class EnvSpec:
    """What an environment gives and takes; shapes are per environment, without the environment axis."""

    obs: Tree
    action: TensorSpec
    num_actions: int | None = None
    """Number of discrete actions, None for a continuous action."""
    low: Tensor | None = None
    high: Tensor | None = None
    """Bounds of a continuous action, shape of one action."""
    num_agents: int | None = None
    """Length of the agent axis, None where there is no such axis."""
    max_episode_steps: int | None = None
    resume: ResumeLevel = "truncated"
    """What a resume restores: `exact` state, a `replayed` episode, or live episodes end as truncations."""
    overlappable: bool = False
    """True where work can go on between `send` and `recv` (the simulator runs in other processes)."""


@dataclass
class Step:
    """One transition of every environment; autoreset is already settled: every row but a lost one is a real transition.

    Attributes:
        obs: Tree (N, ...): what to act on next; the first observation of a new episode where one ended.
        reward: (N,) or (N, A) float32.
        terminated: (N,) bool: the task ended; no bootstrap.
        truncated: (N,) bool: the episode was cut; bootstrap from `final_obs`.
        final_obs: None where no row ended, else a tree (N, ...) whose rows are valid where `ended`.
        episode: Figures of an episode, (N,) float32 each, valid where it ended ("success", "win", ...).
        lost: None, or (N,) bool: rows whose simulator failed in this step. They count as truncated; what they hold is
            no transition and must not be learned from; `obs` is the first of a new episode.
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
        """One step of all rows, of the steps of parts of them in their order."""
        assert all(set(part.episode) == set(parts[0].episode) for part in parts)

        def rows(name: str) -> Tensor:
            return torch.cat([getattr(part, name) for part in parts])

        ended, lost = (any(getattr(part, name) is not None for part in parts) for name in ("final_obs", "lost"))
        finals = [part.obs if part.final_obs is None else part.final_obs for part in parts]
        gone = [torch.zeros_like(part.truncated) if part.lost is None else part.lost for part in parts]
        return cls(
            obs=tree_cat([part.obs for part in parts]),
            reward=rows("reward"),
            terminated=rows("terminated"),
            truncated=rows("truncated"),
            final_obs=tree_cat(finals) if ended else None,
            episode={name: torch.cat([part.episode[name] for part in parts]) for name in parts[0].episode},
            lost=torch.cat(gone) if lost else None,
        )

    def next_obs(self) -> Tree:
        """Tree (N, ...): the observation that this transition led to, the last one of its episode where it ended."""
        if self.final_obs is None:
            return self.obs
        return tree_map(
            lambda obs, final: torch.where(broadcast_rows(self.ended, obs), final, obs), self.obs, self.final_obs
        )


def broadcast_rows(mask: Tensor, like: Tensor) -> Tensor:
    """Views `mask` (N,) as (N, 1, ...) so that it broadcasts over the rows of `like` (N, ...)."""
    return mask.view(mask.shape + (1,) * (like.dim() - mask.dim()))


class EnvHalf(Protocol):
    """Some environments of a `VecEnv`, stepped by themselves."""

    rows: slice

    def send(self, action: Tensor) -> None: ...
    def recv(self) -> Step: ...


@runtime_checkable
class VecEnv(Protocol):
    """N environments stepped together. `send` and `recv` are apart so that updates can run while simulators step.

    What `reset`, `observe` and `recv` return may lie in buffers used in turn: it is valid until the second of these
    calls after it, and who keeps it longer copies it. After `load_state_dict`, ``resumed`` (N,) bool says whose live
    episode goes on, and ``observe()`` what to act on.

    Attributes:
        halves: Two parts that can be stepped independently, for double buffering; empty if there are none.
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
        """Measurements of worker processes, such as seconds per step; empty if there are none."""

    def state_dict(self) -> dict: ...
    def load_state_dict(self, state: dict) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class OfflineLearner(Protocol):
    """What the offline loop needs of an algorithm: it learns from batches and has a state.

    Attributes:
        config: Settings of the algorithm, a frozen dataclass; error messages name its learning rates and limits.
    """

    config: Any

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Takes one step on a batch and returns its figures, 0-d tensors on the device. No host synchronisation."""

    def state_dict(self) -> dict:
        """Everything that training goes on from: live tensors and numbers, not copies."""

    def load_state_dict(self, state: dict) -> None:
        """Restores `state_dict` in place."""


@runtime_checkable
class Learner(OfflineLearner, Protocol):
    """An algorithm that acts on observations and learns from batches. It never sees an environment.

    Attributes:
        lr: Learning rate. Setting it scales all rates of the learner in proportion; loops anneal it.
        cycle: Sequence of updates that repeats, such as an actor that is trained at every second update.
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
            carry: Recurrent state (N, ...), None without memory; the loop zeroes its rows when an episode ends.
            explore: Sample, instead of taking the best action.

        Returns:
            The action for the environment; extras that the loop stores with the transition; the next carry.
        """

    def initial_carry(self, num_envs: int) -> Tensor | None:
        """Recurrent state of new episodes (num_envs, ...), None without memory."""

    def policy_state(self) -> dict[str, Tensor]:
        """Tensors of the exported policy."""


@runtime_checkable
class OnPolicyLearner(Learner, Protocol):
    """A learner for rollouts."""

    def after_rollout(self, obs: Tree) -> None:
        """Called after the updates of each rollout with its observations (T, N, ...)."""


@runtime_checkable
class ValueLearner(OnPolicyLearner, Protocol):
    """A learner whose values make the advantages."""

    def value(self, obs: Tree, carry: Tensor | None) -> Tensor:
        """Values (N,) or (N, A) of observations."""


@runtime_checkable
class TargetLearner(OnPolicyLearner, Protocol):
    """A learner that computes its own targets from rollouts of complete episodes."""

    def targets(self, data: dict[str, Tree], gamma: float, td_lambda: float) -> dict[str, Tree]:
        """Data of the mini-batches, from a rollout (T, N, ...)."""
