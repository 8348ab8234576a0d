"""RolloutCollector: steps environments to fill a rollout, all together or double-buffered in two halves.

With double buffering, the learner acts for one half while the simulators of the other half step. Both modes draw the
same noise for each environment and step, and the learner is constant within a rollout, so they differ in speed and
in rounding: other numbers of rows may be computed by other functions, such as those of ``ppo.fused``.
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
    """Data of one step of all N environments, for a rollout.

    Attributes:
        obs: Tensor or nested dict of tensors (N, ...): observations before the step.
        action: Actions (N, ...) that the learner chose.
        extras: Further outputs (N, ...) of the learner's `act` by name, such as log-probabilities.
        step: Result of the environments: next observations, rewards and ends of episodes.
        carry: Recurrent state (N, ...) that `act` returned; None if the learner has no recurrent state.
    """

    obs: Tree
    action: Tensor
    extras: dict[str, Tensor]
    step: Step
    carry: Tensor | None


class RolloutCollector:
    """Steps environments with the actions of a learner, to fill a rollout.

    Args:
        run: Run of this rank, whose clock measures the phases.
        env: Environments of this rank.
        learner: Learner that acts.
        double_buffer: Act for one half of the environments while the other half steps. If the environments cannot be
            split (fewer than two worker processes), this has no effect and gives a warning.
    """

    def __init__(self, run: Run, env: VecEnv, learner: GuardedLearner, double_buffer: bool) -> None:
        self.run, self.env, self.learner = run, env, learner
        self.send_account, self.recv_account = env_accounts(env)
        run.ranks.progress.allow_wait(env.spec.recv_limit_s)
        self.halves = env.halves if double_buffer else ()
        if double_buffer and not self.halves:
            reason = "has fewer than two workers" if env.spec.overlappable else "steps in the training process"
            warnings.warn(
                f"double_buffer=true has no effect, because this environment {reason}. Leave it out, or write "
                f"num_workers=2 if the recipe has worker processes.",
                stacklevel=3,
            )

    def collect(self, position: LoopState, count: int) -> Iterator[CollectedStep]:
        """Yields the data of `count` steps of all environments.

        Args:
            position: Current observations and recurrent state. The caller must call `position.advance` after each
                yielded step.
            count: Number of steps.
        """
        return self._double_buffered(position, count) if self.halves else self._together(position, count)

    def _together(self, position: LoopState, count: int) -> Iterator[CollectedStep]:
        clock = self.run.clock
        for _ in range(count):
            obs = position.obs
            with clock("act"):
                action, extras, carry = self.learner.act(obs, position.carry)
            with clock(self.send_account):
                self.env.send(action)
            with clock(self.recv_account):
                step = self.env.recv()
            yield CollectedStep(obs, action, extras, step, carry)

    def _double_buffered(self, position: LoopState, count: int) -> Iterator[CollectedStep]:
        """Yields steps as `collect` does, but acts for two halves of the environments in turn and joins their data.

        It sends the next actions of each half as soon as the step of this half has arrived.
        """
        states = [LoopState(_rows(position.obs, half.rows), _rows(position.carry, half.rows)) for half in self.halves]
        sent = [self._sent(half, state) for half, state in zip(self.halves, states, strict=True)]
        for t in range(count):
            current, sent, arrived = sent, [], []
            for half, state, (_, _, _, carry) in zip(self.halves, states, current, strict=True):
                with self.run.clock(self.recv_account):
                    arrived.append(half.recv())
                state.advance(arrived[-1], carry)
                if t + 1 < count:
                    sent.append(self._sent(half, state))
            with self.run.clock("store"):
                obs, action, extras, carry = (_joined(list(parts)) for parts in zip(*current, strict=True))
                collected = CollectedStep(obs, action, extras, Step.concatenate(arrived), carry)
            yield collected

    def _sent(self, half: Any, state: LoopState) -> tuple[Tree, Tensor, dict[str, Tensor], Tensor | None]:
        """Chooses and sends the actions of one half of the environments.

        Returns:
            Observations, actions, extra outputs of `act` and the next recurrent state, which is None if the learner has
            none.
        """
        with self.run.clock("act"), self.run.noise.row_slice(half.rows, self.env.num_envs):
            action, extras, carry = self.learner.act(state.obs, state.carry)
        with self.run.clock(self.send_account):
            half.send(action)
        return state.obs, action, extras, carry


def _rows(tree: Tree | None, rows: slice) -> Tree | None:
    return None if tree is None else tree_map(lambda leaf: leaf[rows], tree)


def _joined(parts: list[Tree | None]) -> Any:
    return None if parts[0] is None else tree_cat(parts)
