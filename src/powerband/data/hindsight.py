"""Hindsight experience replay: batches in which some desired goals are replaced by goals that were achieved later.

Relabelling happens when a batch is drawn, and the replay keeps the goals of the environment. The new goal of a
transition is the achieved goal after a later transition of its episode or after itself, each with the same probability
(strategy *future*). The environment computes its reward.

Source: Andrychowicz et al. 2017, "Hindsight Experience Replay".
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import Tree, broadcast_rows

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"


class GoalReward(Protocol):
    """Computes rewards of transitions for other goals."""

    def __call__(self, achieved: Tensor, desired: Tensor) -> tuple[Tensor, Tensor | None]:
        """Computes the rewards of B transitions, and whether their goals end the episode.

        Args:
            achieved: Achieved goals (B, ...) after the transitions.
            desired: Desired goals (B, ...).

        Returns:
            Rewards (B,) float32; ends (B,) bool, None if goals do not change them.
        """


class EpisodeRows:
    """Finds the later transitions of an episode in a replay whose rows belong to many environments.

    The time of a transition counts the stored transitions of its environment.

    Attributes:
        env, time, episode: (capacity,) int64 each: environment, time and number of the episode of each row.
        row_at: (num_envs, S) int64: row of the transition of an environment at a time, modulo S.
        next_time, number: (num_envs,) int64 each: time of the next transition, and number of the current episode.
    """

    def __init__(self, capacity: int, num_envs: int, device: torch.device) -> None:
        self.env, self.time, self.episode = (torch.full((capacity,), -1, device=device) for _ in range(3))
        self.row_at = torch.zeros(num_envs, -(-capacity // num_envs), dtype=torch.int64, device=device)
        self.next_time, self.number = (torch.zeros(num_envs, dtype=torch.int64, device=device) for _ in range(2))
        self.envs = torch.arange(num_envs, device=device)

    def add(self, rows: Tensor, ended: Tensor, valid: Tensor | None) -> None:
        """Registers new rows.

        Args:
            rows: The new rows (n,) int64.
            ended: (num_envs,) bool: the episode ended with this step.
            valid: Environments (n,) of the rows; None if each environment has one.
        """
        envs = self.envs if valid is None else valid.to(self.envs.device)
        time = self.next_time.index_select(0, envs)
        self.env[rows], self.time[rows], self.episode[rows] = envs, time, self.number.index_select(0, envs)
        self.row_at[envs, time % self.row_at.shape[1]] = rows
        self.next_time[envs] = time + 1
        self.cut(ended)

    def rebuild(self, size: int) -> None:
        """Finds the rows of each time from environment, time and episode of the first `size` rows, oldest first.

        Each environment starts a new episode.
        """
        env, time = self.env[:size], self.time[:size]
        self.row_at[env, time % self.row_at.shape[1]] = torch.arange(size, device=env.device)
        for target, values in ((self.next_time, time), (self.number, self.episode[:size])):
            target.zero_().scatter_reduce_(0, env, values + 1, "amax")

    def cut(self, envs: Tensor) -> None:
        """Ends the current episodes of environments; `envs` is (num_envs,) bool."""
        self.number += envs.to(self.number.device)

    def later(self, rows: Tensor, point: Tensor) -> Tensor:
        """Returns a row (B,) of the same episode for each row (B,): itself or a later one, chosen by `point`.

        The search for the end of an episode has fixed shapes and no host-device synchronisation.

        Args:
            rows: Rows (B,) int64 of stored transitions.
            point: Uniform random numbers (B,) in [0, 1).
        """
        distance = torch.zeros_like(rows)
        for bit in reversed(range(self.row_at.shape[1].bit_length())):
            further = distance + (1 << bit)
            distance = torch.where(self._continues(rows, self._row_after(rows, further), further), further, distance)
        chosen = (point * (distance + 1)).long().minimum(distance)
        row = self._row_after(rows, chosen)
        # After failures of other simulators, an environment can have more rows than `row_at` has places.
        return torch.where(self._continues(rows, row, chosen), row, rows)

    def _row_after(self, rows: Tensor, steps: Tensor) -> Tensor:
        time = self.time.index_select(0, rows) + steps
        return self.row_at[self.env.index_select(0, rows), time % self.row_at.shape[1]]

    def _continues(self, rows: Tensor, later: Tensor, steps: Tensor) -> Tensor:
        """Returns whether the rows `later` (B,) are `steps` (B,) after `rows` (B,) in the same episode."""
        same = self.env.index_select(0, rows) == self.env.index_select(0, later)
        same &= self.episode.index_select(0, rows) == self.episode.index_select(0, later)
        return same & (self.time.index_select(0, rows) + steps == self.time.index_select(0, later))


class Hindsight:
    """Relabels a share of the transitions of a batch.

    Args:
        capacity: Rows of the replay.
        num_envs: Environments that fill it.
        device: Device of the rows.
        ratio: Relabelled transitions per unchanged one, on average.
        goal_reward: Computes the rewards of relabelled transitions.
    """

    def __init__(
        self, capacity: int, num_envs: int, device: torch.device | str, ratio: int, goal_reward: GoalReward
    ) -> None:
        self.share, self.goal_reward = ratio / (ratio + 1), goal_reward
        self.episodes = EpisodeRows(capacity, num_envs, torch.device(device))

    def relabel(self, batch: dict[str, Tree], columns: dict[str, Tree], rows: Tensor, uniform: Tensor) -> None:
        """Replaces goals, rewards and ends in a batch.

        Args:
            batch: Transitions (B, ...) by name, of which entries are replaced.
            columns: All stored transitions by name.
            rows: Rows (B,) of the batch.
            uniform: Uniform random numbers (B, 2) in [0, 1).
        """
        coin, point = uniform.unbind(1)
        later = self.episodes.later(rows, point)
        chosen = coin < self.share
        goal, desired = columns["next_obs"][ACHIEVED].index_select(0, later), batch["obs"][DESIRED]
        desired = torch.where(broadcast_rows(chosen, goal), goal, desired)
        reward, ends = self.goal_reward(batch["next_obs"][ACHIEVED], desired)
        batch["reward"] = torch.where(chosen, reward, batch["reward"])
        if ends is not None:
            batch["terminated"] = torch.where(chosen, ends, batch["terminated"])
        for name in ("obs", "next_obs"):
            batch[name] = {**batch[name], DESIRED: desired}

    def state_dict(self, size: int) -> dict[str, Tensor]:
        """Returns the episodes of the first `size` rows, which are the stored ones."""
        rows = self.episodes
        own = {"env": rows.env[:size], "time": rows.time[:size], "episode": rows.episode[:size]}
        return {**own, "row_at": rows.row_at, "next_time": rows.next_time, "number": rows.number}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores a `state_dict`.

        Raises:
            ConfigError: The saved replay had no episodes, because it was filled with hindsight=0.
        """
        if "episode" not in state:
            raise ConfigError(
                "off_policy.hindsight cannot continue this run, because its replay was filled with hindsight=0. "
                "Resume with off_policy.hindsight=0, or start a new run."
            )
        for name in ("env", "time", "episode"):
            getattr(self.episodes, name)[: len(state[name])].copy_(state[name])
        if "row_at" not in state:  # of another number of ranks
            self.episodes.rebuild(len(state["env"]))
            return
        for name in ("row_at", "next_time", "number"):
            getattr(self.episodes, name).copy_(state[name])
