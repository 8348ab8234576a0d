"""MetaWorldVecEnv: tasks of Meta-World behind the VecEnv protocol, by threads, EnvPool or worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch

from powerband.data.types import VecEnv
from powerband.envs.metaworld import pool
from powerband.envs.metaworld.single import make_metaworld
from powerband.envs.metaworld.tasks import TEN, tasks_of
from powerband.envs.settled import SettledVecEnv
from powerband.envs.supervision import Fault, Supervision
from powerband.envs.vector import WorkerVecEnv

Backend = Literal["auto", "envpool", "threads", "workers"]


@dataclass(frozen=True)
class Tasks:
    """What is simulated.

    Attributes:
        task: A task, or "mt10": its ten in equal shares, with their one-hot code behind the observation.
        horizon: Steps of an episode.
        reward_version: Of the `metaworld` package; EnvPool and threads have v2 only.
        backend: auto takes threads, else EnvPool, else workers: the first that is installed and has what is asked for.
    """

    task: str = "reach"
    horizon: int = 400
    reward_version: str = "v2"
    backend: Backend = "auto"

    @property
    def stepper(self) -> Literal["threads", "envpool", "workers"]:
        """What steps.

        Raises:
            ValueError: It was asked for and is not there, or lacks what was asked for.
        """
        ten, shaped = set(tasks_of(self.task)) <= set(TEN), self.reward_version == "v2"
        if self.backend == "auto":
            if ten and shaped and find_spec("metaworld") is not None:
                return "threads"
            return "envpool" if shaped and pool.importable() else "workers"
        if self.backend != "workers" and not shaped:
            raise ValueError(
                f"reward_version={self.reward_version}: backend={self.backend} has v2 only. Write backend=workers."
            )
        if self.backend == "threads" and not ten:
            raise ValueError(f"task={self.task}: backend=threads has {', '.join(TEN)}. Write backend=workers.")
        if self.backend == "envpool" and not pool.importable():
            raise ValueError("backend=envpool: EnvPool is not installed. Write pip install 'powerband[pool]', or auto.")
        return self.backend

    def rows(self, num_envs: int) -> list[str]:
        """The task of each row.

        Raises:
            ValueError: Ten tasks do not share the rows equally.
        """
        names = tasks_of(self.task)
        if num_envs % len(names):
            raise ValueError(
                f"num_envs={num_envs} on each rank does not divide by the {len(names)} tasks of {self.task}. "
                f"Write num_envs={max(1, num_envs // len(names)) * len(names)}."
            )
        return [name for name in names for _ in range(num_envs // len(names))]


def metaworld_envs(
    tasks: Tasks,
    num_envs: int,
    num_workers: int = -1,
    device: torch.device | str = "cpu",
    seed: int = 0,
    first_env: int = 0,
    *,
    cycled: bool = False,
    supervision: Supervision | None = None,
    tell: Callable[[Fault], object] | None = None,
) -> VecEnv:
    """`num_envs` simulations; ``Step.episode["success"]`` is 1 where the task was solved at any step.

    Args:
        tasks: What is simulated, and by what.
        num_envs: Rows, in equal shares of the tasks.
        num_workers: Worker processes, or threads of EnvPool or of this process; -1 is one a core.
        device: Where observations are delivered.
        seed: Seed of the run: draws the goals.
        first_env: Global index of the first row.
        cycled: The 50 goals in turn instead of drawn ones, by the package: what evaluations use.
        supervision, tell: Of worker processes, as `WorkerVecEnv`.
    """
    names, cores = tasks.rows(num_envs), os.cpu_count() or 1
    coded = TEN if len(set(names)) > 1 else ()
    stepper = "workers" if cycled else tasks.stepper
    if stepper != "workers":
        kind = pool.MetaWorldPool
        if stepper == "threads":
            from powerband.envs.metaworld.threads import MetaWorldThreads as kind
        source = kind(names, tasks.horizon, max(0, num_workers), coded)
        return SettledVecEnv(source, device=device, seed=seed, first_env=first_env, figures=("success",))
    makes: list[Any] = []
    for row, name in enumerate(names):
        words: dict[str, Any] = {"task": name, "horizon": tasks.horizon, "reward_version": tasks.reward_version}
        if coded:
            words["one_hot"] = (coded.index(name), len(coded))
        if cycled:
            share, place = names.count(name), row - names.index(name)
            words |= {"goals": "cycled", "first_goal": place, "goal_stride": share}
        makes.append((make_metaworld, words))
    return WorkerVecEnv(
        makes,
        num_workers=min(num_envs, cores) if num_workers < 0 else min(num_workers, num_envs),
        device=device,
        seed=seed,
        first_env=first_env,
        figures=("success",),
        supervision=supervision,
        tell=tell,
    )
