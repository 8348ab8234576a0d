"""Returns: two estimators that compute returns and advantages of a rollout for the on-policy loop."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from powerband.core.run.run import Run
from powerband.data.rollout import Rollout, gae
from powerband.data.types import Step, TargetLearner, Tree, ValueLearner, broadcast_rows, tree_map


class ReturnsEstimator(Protocol):
    """Estimator of returns and advantages. The loop calls `after_step` after each step, and `finish` after a rollout.

    Attributes:
        rows_per_step: Number of mini-batch rows that one step of one environment yields: 1, or the number of agents if
            each agent is a row.
    """

    rows_per_step: int

    def after_step(self, t: int, rollout: Rollout, step: Step, carry: Tensor | None) -> None: ...
    def finish(self, rollout: Rollout, obs: Tree, carry: Tensor | None) -> dict[str, Tree]: ...


class GaeReturns:
    """Generalised advantage estimation from the values of the learner, for PPO.

    Args:
        run: Run of this rank.
        learner: Learner that computes the values.
        gamma: Discount per step.
        gae_lambda: Lambda of generalised advantage estimation, 0 to 1.
        normalize: Normalise the advantages to mean 0 and standard deviation 1 over the rollouts of all ranks.
    """

    rows_per_step = 1

    def __init__(self, run: Run, learner: ValueLearner, gamma: float, gae_lambda: float, normalize: bool) -> None:
        self.run, self.learner = run, learner
        self.gamma, self.gae_lambda, self.normalize = gamma, gae_lambda, normalize
        self._lost: list[tuple[int, Tensor]] = []

    def after_step(self, t: int, rollout: Rollout, step: Step, carry: Tensor | None) -> None:
        """Stores the values that `finish` needs after step `t` of the rollout.

        These are the values of the observations after step t - 1, and of the last observations of truncated episodes.
        On the CPU, values of last observations are computed for the truncated environments only.

        Args:
            t: Index of the step in the rollout, from 0.
            rollout: Rollout that already contains the step.
            step: Result of the N environments.
            carry: Recurrent state (N, ...) that `act` returned at this step; None without recurrent state.
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
                self._store_final_values(values[t], step, carry)
            if step.lost is not None:  # a repaired failure is no transition: its temporal difference becomes 0
                values[t, step.lost] = value = rollout.data["value"][t, step.lost]
                rollout.data["reward"][t, step.lost] = (1 - self.gamma) * value
                self._lost.append((t, step.lost))

    def _store_final_values(self, values: Tensor, step: Step, carry: Tensor | None) -> None:
        """Writes the values of the final observations in `step` to `values` (N environments, ...), in place."""
        if step.truncated.device.type != "cpu":
            values.copy_(self.learner.value(step.final_obs, carry))
            return
        rows = step.truncated.nonzero().squeeze(1)
        if len(rows):
            last = tree_map(lambda leaf: leaf.index_select(0, rows), step.final_obs)
            values[rows] = self.learner.value(last, None if carry is None else carry.index_select(0, rows))

    def finish(self, rollout: Rollout, obs: Tree, carry: Tensor | None) -> dict[str, Tree]:
        """Adds ``advantages`` and ``returns`` to the data of a complete rollout.

        Args:
            rollout: Rollout of T steps and N environments.
            obs: Observations (N, ...) after the last step.
            carry: Recurrent state (N, ...) after the last step; None without recurrent state.

        Returns:
            The data of the rollout, tensors (T, N, ...) by name, with the two new entries.
        """
        with self.run.clock("act"):
            rollout.store(rollout.num_steps - 1, {"next_value": self.learner.value(obs, carry)})
        with self.run.clock("returns"):
            data = rollout.data
            # For truncated episodes, V of the final observation replaces V of the first one of the next episode.
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
        """Normalises advantages to mean 0 and standard deviation 1 over the rollouts of all ranks."""
        moments = torch.stack([advantage.mean(), advantage.square().mean()]).double()
        mean, square = self.run.ranks.average_(moments).float().unbind()
        return (advantage - mean) / ((square - mean * mean).clamp(min=0).sqrt() + 1e-8)


class LearnerReturns:
    """Targets that the learner computes from a rollout of complete episodes, for COMA and MAPPO.

    Args:
        run: Run of this rank.
        learner: Learner that computes the targets.
        gamma: Discount per step.
        td_lambda: Lambda of TD(lambda) or of generalised advantage estimation, 0 to 1.
        num_agents: Agents per environment; each agent is a row of a mini-batch.
    """

    def __init__(self, run: Run, learner: TargetLearner, gamma: float, td_lambda: float, num_agents: int) -> None:
        self.rows_per_step = num_agents
        self.run, self.learner, self.gamma, self.td_lambda = run, learner, gamma, td_lambda

    def after_step(self, t: int, rollout: Rollout, step: Step, carry: Tensor | None) -> None:
        """Does nothing: the critic evaluates the complete rollout in `finish`."""

    def finish(self, rollout: Rollout, obs: Tree, carry: Tensor | None) -> dict[str, Tree]:
        """Returns the result of the learner's `targets` for the complete rollout: tensors for mini-batches, by name.

        `obs` and `carry` are not used.
        """
        with self.run.clock("returns"):
            return self.learner.targets(rollout.data, self.gamma, self.td_lambda)
