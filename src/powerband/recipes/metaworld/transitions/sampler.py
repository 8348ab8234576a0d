"""TransitionSampler: keeps a sample of the newest transitions of an expert, and ends its training at success."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from powerband.algos.sac import SAC
from powerband.core.run.run import Run
from powerband.core.schedule import Every
from powerband.data.recorded.shards import write_shards
from powerband.data.replay import Replay
from powerband.data.types import Step
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.project_folder import stage_folder
from powerband.recipes.metaworld.transitions.trajectories import trajectory_starts

FIELDS = ("obs", "action", "reward", "next_obs")
LABEL_ROWS = 8192
"""Transitions that are labelled in one batch."""


def order_by_env(rows: dict[str, Tensor], num_envs: int) -> dict[str, Tensor]:
    """Reorders transitions from the order of the replay buffer, step by step, to environment by environment.

    Args:
        rows: Name -> tensor (steps * num_envs, ...): first the transitions of all environments at the first step, then
            those at the second step, and so on.
        num_envs: Number of environments that were stepped together.

    Returns:
        The fields obs, action, reward and next_obs in the new order, and ``start`` (steps * num_envs,) bool: True if a
        transition does not continue the episode of the transition before it.
    """
    count = len(rows["obs"]) // num_envs * num_envs
    ordered = {name: rows[name][:count].unflatten(0, (-1, num_envs)).transpose(0, 1).flatten(0, 1) for name in FIELDS}
    return {**ordered, "start": trajectory_starts(ordered["obs"], ordered["next_obs"])}


class TransitionSampler:
    """Copies the newest transitions of the replay buffer at intervals, and stops a run that succeeds reliably.

    A run stops after ``config.stop_after_successes`` successful episodes in a row; 0 never stops a run. The off-policy
    loop calls `after_step` at each step.

    Args:
        run: The run that is stopped.
        config: Configuration whose ``collect`` has the interval and the sizes of the samples, over all ranks.
        num_envs: Number of environments of this rank.

    Attributes:
        chunks: The samples, oldest first, each as name -> tensor (transitions, ...).
    """

    def __init__(self, run: Run, config: Config, num_envs: int) -> None:
        world = run.ranks.world_size
        self.run, self.num_envs = run, num_envs
        self.every = Every(config.collect.interval)
        self.steps = -(-config.collect.samples // (world * num_envs))
        self.size = config.collect.size // world
        self.chunks: deque[dict[str, Tensor]] = deque()
        self.needed = config.stop_after_successes
        self.succeeded: deque[bool] = deque(maxlen=self.needed or 1)
        self.seen = 0

    def after_step(self, step: Step, replay: Replay) -> None:
        """Takes a sample if one is due, and stops the run if the last episodes of this rank were all successful."""
        self.seen += self.num_envs * self.run.ranks.world_size
        if self.needed and step.final_obs is not None:
            self.succeeded.extend((step.episode["success"][step.ended] > 0).tolist())
            if len(self.succeeded) == self.needed and all(self.succeeded):
                self.run.stop(f"the last {self.needed} episodes all succeeded")
        if self.every.ready(self.seen):
            self.take(replay)

    def take(self, replay: Replay) -> None:
        """Copies the newest transitions as one sample, and discards the oldest samples if there are too many.

        The limit for the transitions in all samples is ``collect.size``.
        """
        count = min(self.steps, replay.size // self.num_envs) * self.num_envs
        if not count:
            return
        newest = replay.newest(count)
        self.chunks.append({name: newest[name].cpu() for name in FIELDS})
        while sum(len(chunk["obs"]) for chunk in self.chunks) > self.size and len(self.chunks) > 1:
            self.chunks.popleft()

    def redistribute(self, states: list[dict[str, Any]]) -> None:
        """Restores this rank's environments of the samples of a run that had another number of ranks.

        The count of successes in a row restarts at zero, because this rank has other environments.

        Args:
            states: Results of `state_dict` of the saved ranks, in rank order.
        """
        world, first = self.run.ranks.world_size, self.run.ranks.rank * self.num_envs
        saved_envs = world * self.num_envs // len(states)

        def share(parts: list[Tensor]) -> Tensor:
            steps = [part.unflatten(0, (-1, saved_envs)) for part in parts]
            shared_steps = min(len(part) for part in steps)
            rows = torch.cat([part[len(part) - shared_steps :] for part in steps], 1)
            return rows[:, first : first + self.num_envs].flatten(0, 1)

        chunks = [[state["chunks"][str(index)] for state in states] for index in range(len(states[0]["chunks"]))]
        self.chunks = deque({name: share([part[name] for part in chunk]) for name in FIELDS} for chunk in chunks)
        self.seen = states[0]["seen"]
        self.every.load_state_dict(states[0]["every"])

    def rows(self) -> dict[str, Tensor]:
        """Concatenates all samples.

        Returns:
            Name -> tensor (transitions, ...): obs, action, reward, next_obs and start, in the order of `order_by_env`.
        """
        parts = [order_by_env(chunk, self.num_envs) for chunk in self.chunks]
        return {name: torch.cat([part[name] for part in parts]) for name in (*FIELDS, "start")}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint: the samples, the counters and the successes of the last episodes."""
        return {
            "chunks": {str(index): chunk for index, chunk in enumerate(self.chunks)},
            "succeeded": list(self.succeeded),
            "seen": self.seen,
            "every": self.every.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`."""
        self.chunks = deque(state["chunks"][str(index)] for index in range(len(state["chunks"])))
        self.succeeded.extend(state["succeeded"])
        self.seen = state["seen"]
        self.every.load_state_dict(state["every"])


@torch.no_grad()
def add_labels(rows: dict[str, Tensor], expert: SAC) -> dict[str, Tensor]:
    """Adds the policy and the value of an expert to transitions, as labels for distillation.

    Args:
        rows: Name -> tensor (N, ...) of N transitions, among them ``obs`` and ``next_obs``.
        expert: The trained expert.

    Returns:
        `rows` with ``mu`` and ``log_std`` (N, 4), the expert's policy at ``obs``, and ``q_target`` (N,), its value at
        ``next_obs``; `SAC.labels` defines them.
    """
    device, parts = expert.centre.device, []
    for first in range(0, len(rows["obs"]), LABEL_ROWS):
        batch = {name: rows[name][first : first + LABEL_ROWS].to(device) for name in ("obs", "next_obs")}
        parts.append({name: value.cpu() for name, value in expert.labels(batch).items()})
    return {**rows, **{name: torch.cat([part[name] for part in parts]) for name in parts[0]}}


def write_transitions(config: Config, run: Run, what: str, rows: dict[str, Tensor], teacher: str, gamma: float) -> None:
    """Writes the transitions of all ranks into the project folder, with a manifest that describes them.

    Args:
        config: Names the project folder, and describes the task for the manifest.
        run: Ranks, and the number of environment steps for the manifest.
        what: Subfolder of the project folder: ``experts`` or ``online``.
        rows: Labelled transitions of this rank, name -> tensor (transitions, ...).
        teacher: Policy that labelled the transitions: ``expert`` or ``scripted``.
        gamma: Discount of the values in ``q_target``.
    """
    facts: dict[str, Any] = {
        "what": f"metaworld {what}",
        "task": config.task,
        "reward_version": config.reward_version,
        "horizon": config.horizon,
        "gamma": gamma,
        "teacher": teacher,
        "env_steps": run.env_steps,
        "order": "a row continues the row before it unless start is true",
        "q_target": "min Q'(s', a') - alpha log pi(a' | s') at next_obs, without the reward; nan if unknown",
    }
    folder = stage_folder(config, what, config.task) / "data"
    write_shards(folder, rows, facts, run.ranks.gather, run.ranks.rank)
