"""GymVecEnv: any Gymnasium environment by its id, the user's own included, in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from powerband.data.types import ResumeLevel
from powerband.envs.by_id import make_gym
from powerband.envs.supervision import Fault, Supervision
from powerband.envs.vector import WorkerVecEnv


def GymVecEnv(  # noqa: N802  reads like the other environments; it is a WorkerVecEnv of one id
    env_id: str,
    num_envs: int,
    num_workers: int = 0,
    device: torch.device | str = "cpu",
    seed: int = 0,
    first_env: int = 0,
    env_kwargs: dict[str, Any] | None = None,
    *,
    figures: tuple[str, ...] = (),
    resume: ResumeLevel = "replayed",
    supervision: Supervision | None = None,
    tell: Callable[[Fault], object] | None = None,
) -> WorkerVecEnv:
    """`num_envs` environments of one id.

    Box actions stay in the environment's own units, between ``spec.low`` and ``spec.high``: an algorithm whose policy
    is bounded maps onto them, and what lies outside is clipped. The time limit of the id's registration truncates;
    only the task itself terminates.

    Args:
        env_id: An id such as "Pendulum-v1", or "my_package.envs:MyEnv-v0", where importing the module registers the id.
        num_envs: Number of environments.
        num_workers: Worker processes; 0 steps in this process.
        device: Where observations are delivered.
        seed: Seed of the run.
        first_env: Global index of the first environment.
        env_kwargs: Keyword arguments of the environment.
        figures: Names of `info` values of an episode's last step that are reported, for example "success".
        resume: "truncated" for an environment that does not repeat itself under the same seed and actions.
        supervision, tell: Whether to go on where a simulator fails, and who is told; as `WorkerVecEnv`.

    Raises:
        ValueError: An unknown id (the nearest ones are named), a space without a tensor form, a missing package.
    """
    make = (make_gym, {"env_id": env_id, **(env_kwargs or {})})
    return WorkerVecEnv(
        [make] * num_envs,
        num_workers=num_workers,
        device=device,
        seed=seed,
        first_env=first_env,
        figures=figures,
        resume=resume,
        supervision=supervision,
        tell=tell,
    )
