"""Collector: looks on while an expert trains, samples the newest transitions, and notes when the task is solved."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from powerband.algos.sac import SAC
from powerband.core.run import Run
from powerband.core.schedule import Every
from powerband.data.replay import Replay
from powerband.data.shards import write_shards
from powerband.data.trajectories import starts_of
from powerband.data.types import Step
from powerband.recipes.metaworld import Config
from powerband.recipes.metaworld_project import folder_of

FIELDS = ("obs", "action", "reward", "next_obs")
LABELLED = 8192
"""Rows that are labelled at a time."""


def ordered(rows: dict[str, Tensor], num_envs: int) -> dict[str, Tensor]:
    """Transitions as they entered the replay, all environments at each step, as one environment after the other.

    Args:
        rows: Name -> (steps num_envs, ...).
        num_envs: Environments that were stepped together.

    Returns:
        The same rows, and ``start`` (n,) bool: the row does not go on from the one before.
    """
    count = len(rows["obs"]) // num_envs * num_envs
    sorted_ = {name: rows[name][:count].unflatten(0, (-1, num_envs)).transpose(0, 1).flatten(0, 1) for name in FIELDS}
    return {**sorted_, "start": starts_of(sorted_["obs"], sorted_["next_obs"])}


class Collector:
    """What `off_policy` shows each step to.

    Args:
        run: Is ended once enough episodes in a row succeeded.
        config: Intervals and sizes, over all ranks.
        num_envs: Environments of this rank.
    """

    def __init__(self, run: Run, config: Config, num_envs: int) -> None:
        world = run.ranks.world_size
        self.run, self.num_envs = run, num_envs
        self.every = Every(config.collect.interval)
        self.steps = -(-config.collect.samples // (world * num_envs))
        self.size = config.collect.size // world
        self.chunks: deque[dict[str, Tensor]] = deque()
        self.succeeded: deque[bool] = deque(maxlen=config.stop_after or 1)
        self.needed = config.stop_after
        self.seen = 0

    def after_step(self, step: Step, replay: Replay) -> None:
        """Samples where it is due; ends the run where the last episodes of this rank all succeeded."""
        self.seen += self.num_envs * self.run.ranks.world_size
        if self.needed and step.final_obs is not None:
            self.succeeded.extend((step.episode["success"][step.ended] > 0).tolist())
            if len(self.succeeded) == self.needed and all(self.succeeded) and not self.run.enough:
                self.run.enough = f"the last {self.needed} episodes all succeeded"
        if self.every.ready(self.seen):
            self.take(replay)

    def take(self, replay: Replay) -> None:
        """Takes the newest transitions; the oldest sample gives way where there is no room."""
        count = min(self.steps, replay.size // self.num_envs) * self.num_envs
        if not count:
            return
        newest = replay.newest(count)
        self.chunks.append({name: newest[name].cpu() for name in FIELDS})
        while sum(len(chunk["obs"]) for chunk in self.chunks) > self.size and len(self.chunks) > 1:
            self.chunks.popleft()

    def rows(self) -> dict[str, Tensor]:
        """All samples, one environment after the other within each."""
        parts = [ordered(chunk, self.num_envs) for chunk in self.chunks]
        return {name: torch.cat([part[name] for part in parts]) for name in (*FIELDS, "start")}

    def state_dict(self) -> dict:
        return {
            "chunks": {str(index): chunk for index, chunk in enumerate(self.chunks)},
            "succeeded": list(self.succeeded),
            "seen": self.seen,
            "every": self.every.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        self.chunks = deque(state["chunks"][str(index)] for index in range(len(state["chunks"])))
        self.succeeded.extend(state["succeeded"])
        self.seen = state["seen"]
        self.every.load_state_dict(state["every"])


@torch.no_grad()
def labelled(rows: dict[str, Tensor], expert: SAC) -> dict[str, Tensor]:
    """`rows` with what `expert` says about each: mu, log_std, q_target."""
    device, parts = expert.centre.device, []
    for first in range(0, len(rows["obs"]), LABELLED):
        batch = {name: rows[name][first : first + LABELLED].to(device) for name in ("obs", "next_obs")}
        parts.append({name: value.cpu() for name, value in expert.labels(batch).items()})
    return {**rows, **{name: torch.cat([part[name] for part in parts]) for name in parts[0]}}


def write_rows(config: Config, run: Run, what: str, rows: dict[str, Tensor], teacher: str, gamma: float) -> None:
    """Writes the rows of all ranks into the project, with what they are; `gamma` is of the values in q_target."""
    facts: dict[str, Any] = {
        "what": f"metaworld {what}",
        "task": config.task,
        "reward_version": config.reward_version,
        "horizon": config.horizon,
        "gamma": gamma,
        "teacher": teacher,
        "env_steps": run.env_steps,
        "order": "rows go on from the one before, but where start is true",
        "q_target": "min Q'(s', a') - alpha log pi(a' | s') at next_obs, without the reward; nan where unknown",
    }
    folder = folder_of(config, what, config.task) / "data"
    write_shards(folder, rows, facts, run.ranks.gather, run.ranks.rank)
