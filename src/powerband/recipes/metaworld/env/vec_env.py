"""Creates vectorised environments (`VecEnv`) of Meta-World tasks, stepped by threads, EnvPool or worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from powerband.core.machine.device import cores_per_rank
from powerband.data.types import VecEnv
from powerband.envs.adapters.external import ExternalVecEnv, ExternalVector
from powerband.envs.workers.supervision import EnvFailure, Supervision
from powerband.envs.workers.vector import EnvFn, WorkerVecEnv
from powerband.recipes.metaworld.env.gymnasium_env import GOAL_SEED, make_metaworld_env
from powerband.recipes.metaworld.env.tasks import TASK_SETS, TaskConfig

EPISODE_METRICS = ("success",)


def make_metaworld_vec_env(
    tasks: TaskConfig,
    num_envs: int,
    num_workers: int = -1,
    device: torch.device | str = "cpu",
    seed: int = 0,
    first_env: int = 0,
    *,
    cycle_goals: bool = False,
    goal_seed: int = GOAL_SEED,
    supervision: Supervision | None = None,
    on_failure: Callable[[EnvFailure], object] | None = None,
) -> VecEnv:
    """Creates vectorised environments of Meta-World tasks.

    ``Step.episode["success"]`` is 1 if the task was solved at any step of the episode.

    Args:
        tasks: Tasks, horizon, rewards and backend.
        num_envs: Number of simulations; each task has an equal share of them.
        num_workers: Worker processes, or threads of EnvPool or of this process; -1 starts one per core.
        device: Device of observations.
        seed: Seed of the run, which draws the goals.
        first_env: Index of the first of these simulations among those of all ranks.
        cycle_goals: For evaluations: cycle through the 50 fixed goals of the metaworld package. False draws goals.
        goal_seed: Seed of the 50 goals, for `cycle_goals`.
        supervision, on_failure: How `WorkerVecEnv` continues after a failed step, and a function that it calls with
            each failure that was repaired. With None for `supervision`, a failure raises EnvError.

    Raises:
        ConfigError: The backend is not installed, or `num_envs` does not divide by the number of tasks.
    """
    names = tasks.task_of_each_env(num_envs)
    one_hot_tasks = TASK_SETS.get(tasks.task, ())
    backend = "workers" if cycle_goals else tasks.resolved_backend
    if backend != "workers":
        source = _source(backend, names, tasks.horizon, max(0, num_workers), one_hot_tasks)
        return ExternalVecEnv(source, device=device, seed=seed, first_env=first_env, episode_metrics=EPISODE_METRICS)
    env_fns: list[EnvFn] = []
    for row, name in enumerate(names):
        options: dict[str, Any] = {"task": name, "horizon": tasks.horizon, "reward_version": tasks.reward_version}
        if one_hot_tasks:
            options["one_hot"] = (one_hot_tasks.index(name), len(one_hot_tasks))
        if cycle_goals:
            share, place = names.count(name), row - names.index(name)
            options |= {"goals": "cycled", "goal_seed": goal_seed, "first_goal": place, "goal_stride": share}
        env_fns.append((make_metaworld_env, options))
    return WorkerVecEnv(
        env_fns,
        num_workers=min(num_envs, cores_per_rank()) if num_workers < 0 else min(num_workers, num_envs),
        device=device,
        seed=seed,
        first_env=first_env,
        episode_metrics=EPISODE_METRICS,
        supervision=supervision,
        on_failure=on_failure,
    )


def _source(
    backend: str, tasks: list[str], horizon: int, threads: int, one_hot_tasks: tuple[str, ...]
) -> ExternalVector:
    """Creates the simulations of backend threads or envpool; the simulator of the other backend is not imported."""
    if backend == "threads":
        from powerband.recipes.metaworld.env.threads.vector import ThreadedMetaWorld

        return ThreadedMetaWorld(tasks, horizon, threads, one_hot_tasks)
    from powerband.recipes.metaworld.env.envpool import EnvPoolMetaWorld

    return EnvPoolMetaWorld(tasks, horizon, threads, one_hot_tasks)
