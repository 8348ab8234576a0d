"""GymVecEnv: creates a vector of Gymnasium environments from an id and steps them in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from powerband.data.types import ResumeLevel
from powerband.envs.adapters.by_id import make_gym
from powerband.envs.adapters.wrapping import Wrapping
from powerband.envs.workers.supervision import EnvFailure, Supervision
from powerband.envs.workers.vector import WorkerVecEnv


def GymVecEnv(  # noqa: N802  named like the other environments; it returns a WorkerVecEnv
    env_id: str,
    num_envs: int,
    num_workers: int = 0,
    device: torch.device | str = "cpu",
    seed: int = 0,
    first_env: int = 0,
    env_kwargs: dict[str, Any] | None = None,
    *,
    wrapping: Wrapping | None = None,
    episode_metrics: tuple[str, ...] = (),
    resume: ResumeLevel = "replayed",
    supervision: Supervision | None = None,
    on_failure: Callable[[EnvFailure], object] | None = None,
) -> WorkerVecEnv:
    """Creates several environments from a Gymnasium id and steps them in worker processes.

    Box actions have the units of the environment and are clipped to ``spec.low .. spec.high``; an algorithm with a
    bounded policy maps its actions to these bounds. The time limit of the registration truncates an episode; only the
    task itself terminates it.

    Args:
        env_id: An id such as "Pendulum-v1", "my_package.envs:MyEnv-v0" if importing the module registers the id, or
            "module:parallel_env" for a parallel environment of PettingZoo.
        num_envs: Number of environments.
        num_workers: Worker processes; 0 steps in this process.
        device: Device of observations, rewards and flags.
        seed: Seed of the run.
        first_env: Index of the first environment among those of all ranks (processes of the training).
        env_kwargs: Keyword arguments of the environment.
        wrapping: Wrappers around each environment; None for none.
        episode_metrics: Names of `info` values of the last step of an episode, for example "success".
        resume: "replayed": a resumed run repeats the actions of the current episodes. "truncated": it starts new
            episodes, for an environment that does not repeat itself under equal seeds and actions.
        supervision: Limits within which the run continues after a failure of a simulator; None raises EnvError.
        on_failure: Called with each failure that was repaired; needs `supervision`.

    Raises:
        ConfigError: The id is unknown, a space has no tensor form, or a package is not installed.
    """
    env_fn = (make_gym, {"env_id": env_id, "wrapping": wrapping, "env_kwargs": env_kwargs})
    return WorkerVecEnv(
        [env_fn] * num_envs,
        num_workers=num_workers,
        device=device,
        seed=seed,
        first_env=first_env,
        episode_metrics=episode_metrics,
        resume=resume,
        supervision=supervision,
        on_failure=on_failure,
    )
