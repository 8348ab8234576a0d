"""What a rollout is worth: the two ways in which the on-policy loop turns rewards into what a learner learns from."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from powerband.core.run.run import Run
from powerband.data.rollout import Rollout, gae
from powerband.data.types import Step, TargetLearner, Tree, ValueLearner, broadcast_rows, tree_map


class ReturnsEstimator(Protocol):
    """Called by the loop: after each step, and once the rollout is full.

    Attributes:
        rows_per_step: Rows of a mini-batch that one step of one environment makes.
    """

    rows_per_step: int

    def after_step(self, t: int, rollout: Rollout, step: Step, carry: Tensor | None) -> None: ...
    def finish(self, rollout: Rollout, obs: Tree, carry: Tensor | None) -> dict[str, Tree]: ...


class GaeReturns:
    """Generalised advantage estimation from the learner's values, as PPO wants it.

    Args:
        run: Clock and ranks.
        learner: Gives values.
        gamma, gae_lambda, normalize: As in `OnPolicyConfig`.
    """

    rows_per_step = 1

    def __init__(self, run: Run, learner: ValueLearner, gamma: float, gae_lambda: float, normalize: bool) -> None:
        self.run, self.learner = run, learner
        self.gamma, self.gae_lambda, self.normalize = gamma, gae_lambda, normalize
        self._lost: list[tuple[int, Tensor]] = []

    def after_step(self, t: int, rollout: Rollout, step: Step, carry: Tensor | None) -> None:
        """Stores V of where the step before led to, and V of the last observation where step t truncated an episode.

        On the CPU only the rows that were cut are evaluated.
        """
        if t:
            with self.run.clock("store"):
                rollout.store(t - 1, {"next_value": rollout.data["value"][t]})
        with self.run.clock("act"):
            values = rollout.data.get("cut_value")
            if values is None:
                rollout.store(t, {"cut_value": torch.zeros_like(step.reward)})
                values = rollout.data["cut_value"]
            if step.final_obs is not None:
                self._value_cuts(values[t], step, carry)
            if step.lost is not None:  # no transition: nothing followed, and nothing is learned from it
                values[t, step.lost] = now = rollout.data["value"][t, step.lost]
                rollout.data["reward"][t, step.lost] = (1 - self.gamma) * now
                self._lost.append((t, step.lost))

    def _value_cuts(self, values: Tensor, step: Step, carry: Tensor | None) -> None:
        """Writes V of the last observations into `values` (N, ...)."""
        if step.truncated.device.type != "cpu":
            values.copy_(self.learner.value(step.final_obs, carry))
            return
        rows = step.truncated.nonzero().squeeze(1)
        if len(rows):
            last = tree_map(lambda leaf: leaf.index_select(0, rows), step.final_obs)
            values[rows] = self.learner.value(last, None if carry is None else carry.index_select(0, rows))

    def finish(self, rollout: Rollout, obs: Tree, carry: Tensor | None) -> dict[str, Tree]:
        """The rollout with ``advantages`` and ``returns``."""
        with self.run.clock("act"):
            rollout.store(rollout.num_steps - 1, {"next_value": self.learner.value(obs, carry)})
        with self.run.clock("returns"):
            data = rollout.data
            # Where an episode was cut, V of its last observation stands in for V of the next episode's first one.
            next_value = torch.where(
                broadcast_rows(data["truncated"], data["value"]), data["cut_value"], data["next_value"]
            )
            ends = data["terminated"], data["truncated"]
            advantage, returns = gae(data["reward"], data["value"], next_value, *ends, self.gamma, self.gae_lambda)
            data["advantages"] = self._normalized(advantage) if self.normalize else advantage
            data["returns"] = returns
            for t, rows in self._lost:
                data["advantages"][t, rows] = 0.0
            self._lost.clear()
        return data

    def _normalized(self, advantage: Tensor) -> Tensor:
        """Advantages to mean 0 and deviation 1 over the rollouts of all ranks."""
        moments = torch.stack([advantage.mean(), advantage.square().mean()]).double()
        mean, square = self.run.ranks.average_(moments).float().unbind()
        return (advantage - mean) / ((square - mean * mean).clamp(min=0).sqrt() + 1e-8)


class LearnerReturns:
    """TD(lambda) targets that the learner makes itself of a rollout of whole episodes, as COMA wants it.

    Args:
        run: Clock.
        learner: Has ``targets(data, gamma, td_lambda) -> data for the mini-batches``.
        gamma, td_lambda: Discount, and decay of the trace.
        num_agents: Every agent of a step is a row of its own.
    """

    def __init__(self, run: Run, learner: TargetLearner, gamma: float, td_lambda: float, num_agents: int) -> None:
        self.rows_per_step = num_agents
        self.run, self.learner, self.gamma, self.td_lambda = run, learner, gamma, td_lambda

    def after_step(self, t: int, rollout: Rollout, step: Step, carry: Tensor | None) -> None:
        """Nothing: the critic sees the whole rollout at its end."""

    def finish(self, rollout: Rollout, obs: Tree, carry: Tensor | None) -> dict[str, Tree]:
        """What `learner.targets` makes of it."""
        with self.run.clock("returns"):
            return self.learner.targets(rollout.data, self.gamma, self.td_lambda)
