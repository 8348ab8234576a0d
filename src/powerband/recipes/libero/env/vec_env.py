"""Runs LIBERO simulators in supervised worker processes, behind the protocol VecEnv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from powerband.core.machine.device import cores
from powerband.envs.workers.supervision import EnvFailure, Supervision
from powerband.envs.workers.vector import WorkerVecEnv
from powerband.recipes.libero.env.gymnasium_env import make_libero_env

EPISODE_METRICS = ("success", "steps")


def num_simulators(num_workers: int) -> int:
    """Returns the number of parallel simulators for the option `num_workers`.

    It is the number of CPU cores for -1, and 1 for 0, which runs the simulator in this process.
    """
    return cores() if num_workers < 0 else max(1, num_workers)


def make_libero_vec_env(
    kwargs: Sequence[dict[str, Any]],
    num_workers: int = -1,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    supervision: Supervision | None = None,
    on_failure: Callable[[EnvFailure], object] | None = None,
) -> WorkerVecEnv:
    """Creates vectorised LIBERO environments, which worker processes step.

    ``Step.episode`` has ``success`` (0 or 1) and ``steps``, the number of actions of the episode.

    Args:
        kwargs: Keyword arguments of `LiberoEnv` for each environment; all must have observations of the same shapes.
        num_workers: Worker processes; -1 starts one per core, 0 steps in this process.
        device: Device on which observations are delivered.
        seed: Seed of the run; it determines the initial positions of the objects.
        supervision: How `WorkerVecEnv` continues after a simulator fails in a step; None raises EnvError.
        on_failure: Called with each failure that was repaired; needs `supervision`.
    """
    workers = min(len(kwargs), cores() if num_workers < 0 else num_workers)
    return WorkerVecEnv(
        [(make_libero_env, each) for each in kwargs],
        num_workers=workers,
        device=device,
        seed=seed,
        episode_metrics=EPISODE_METRICS,
        resume="truncated",
        supervision=supervision,
        on_failure=on_failure,
    )
