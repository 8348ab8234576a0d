"""How a rollout's steps come about: all environments in step, or two halves by turns (double buffering).

By turns, actions for one half are chosen while the simulators of the other work. Both ways draw the same noise for
each environment and step, and nothing is learned within a rollout, so they differ in time alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from powerband.core.run.run import Run
from powerband.data.types import Step, Tree, VecEnv, tree_cat, tree_map
from powerband.loops.support.guarded_learner import GuardedLearner
from powerband.loops.support.loop_state import LoopState, env_accounts


@dataclass(frozen=True)
class CollectedStep:
    """One step of all environments.

    Attributes:
        obs, action, extras: What was seen, done, and what the learner gave beside it; trees (N, ...).
        step: What came of it.
        carry: (N, ...) memory after `obs`, None without.
    """

    obs: Tree
    action: Tensor
    extras: dict[str, Tensor]
    step: Step
    carry: Tensor | None


class RolloutCollector:
    """Walks environments with the actions of a learner.

    Args:
        run: Clock and noise.
        env: This rank's environments.
        learning: Acts.
        double_buffer: Step two halves by turns; without effect, and said so, where there are no two workers.
    """

    def __init__(self, run: Run, env: VecEnv, learning: GuardedLearner, double_buffer: bool) -> None:
        self.run, self.env, self.learning = run, env, learning
        self.send_account, self.recv_account = env_accounts(env)
        self.halves = env.halves if double_buffer else ()
        if double_buffer and not self.halves:
            why = "has fewer than two workers" if env.spec.overlappable else "steps inside this process"
            warnings.warn(f"double_buffer=true has no effect: this environment {why}.", stacklevel=3)

    def collect(self, position: LoopState, count: int) -> Iterator[CollectedStep]:
        """`count` steps from `position` on; who takes one moves the position before the next."""
        return self._by_turns(position, count) if self.halves else self._in_step(position, count)

    def _in_step(self, position: LoopState, count: int) -> Iterator[CollectedStep]:
        clock = self.run.clock
        for _ in range(count):
            obs = position.obs
            with clock("act"):
                action, extras, carry = self.learning.act(obs, position.carry)
            with clock(self.send_account):
                self.env.send(action)
            with clock(self.recv_account):
                step = self.env.recv()
            yield CollectedStep(obs, action, extras, step, carry)

    def _by_turns(self, position: LoopState, count: int) -> Iterator[CollectedStep]:
        """Each half is sent its next actions as soon as it has arrived; what is yielded are both halves of one step."""
        own = [LoopState(_rows(position.obs, half.rows), _rows(position.carry, half.rows)) for half in self.halves]
        sent = [self._sent(half, at) for half, at in zip(self.halves, own, strict=True)]
        for t in range(count):
            now, sent, arrived = sent, [], []
            for half, at, (_, _, _, carry) in zip(self.halves, own, now, strict=True):
                with self.run.clock(self.recv_account):
                    arrived.append(half.recv())
                at.advance(arrived[-1], carry)
                if t + 1 < count:
                    sent.append(self._sent(half, at))
            with self.run.clock("store"):
                obs, action, extras, carry = (_joined(list(parts)) for parts in zip(*now, strict=True))
                taken = CollectedStep(obs, action, extras, Step.concatenate(arrived), carry)
            yield taken

    def _sent(self, half: Any, at: LoopState) -> tuple[Tree, Tensor, dict[str, Tensor], Tensor | None]:
        """Chooses actions for a half and hands them over; returns what `CollectedStep` has of it."""
        with self.run.clock("act"), self.run.noise.row_slice(half.rows, self.env.num_envs):
            action, extras, carry = self.learning.act(at.obs, at.carry)
        with self.run.clock(self.send_account):
            half.send(action)
        return at.obs, action, extras, carry


def _rows(tree: Tree | None, rows: slice) -> Tree | None:
    return None if tree is None else tree_map(lambda leaf: leaf[rows], tree)


def _joined(parts: list[Tree | None]) -> Tree | None:
    return None if parts[0] is None else tree_cat(parts)
