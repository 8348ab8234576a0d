"""Environments of gym: simulators in worker processes, and the function that computes rewards of relabelled goals."""

from __future__ import annotations

from collections.abc import Callable

import torch

from powerband.core.machine.device import cores_per_rank
from powerband.envs.adapters.by_id import make_gym
from powerband.envs.adapters.goal_reward import EnvGoalReward
from powerband.envs.adapters.gymnasium_env import GymVecEnv
from powerband.envs.workers.supervision import EnvFailure, Supervision
from powerband.envs.workers.vector import WorkerVecEnv
from powerband.recipes.gym.config import ALGORITHMS, Config


def make_env(
    config: Config,
    num_envs: int,
    workers: int,
    seed: int,
    rank: int = 0,
    device: torch.device | str = "cpu",
    on_failure: Callable[[EnvFailure], object] | None = None,
) -> WorkerVecEnv:
    """Creates the environments of one rank (a training process of a distributed run).

    Args:
        config: Configuration of the run, which names the environment and the limits on failures of simulators.
        num_envs: Number of environments on the rank.
        workers: Worker processes of the rank. 0 steps in this process. -1 starts one per core of the rank,
            or two for double buffering, but at most one per environment.
        seed: Seed of the run.
        rank: Number of the rank.
        device: Device of observations.
        on_failure: Function that is called for each simulator that failed and was restarted; None if there is none.
    """
    if workers < 0:
        double_buffered = ALGORITHMS[config.algo].loop == "on_policy" and config.on_policy.double_buffer
        workers = min(num_envs, cores_per_rank() * (2 if double_buffered else 1))
    supervision = Supervision(deadline_s=config.worker_deadline_s) if config.supervise else None
    return GymVecEnv(
        config.env_id,
        num_envs,
        workers,
        device,
        seed,
        first_env=rank * num_envs,
        env_kwargs=config.env_arguments(),
        wrapping=config.wrap,
        supervision=supervision,
        on_failure=on_failure,
    )


def make_goal_reward(config: Config) -> EnvGoalReward:
    """Creates one more environment in this process, whose function computes rewards for relabelled goals.

    Raises:
        ConfigError: The environment has no goals or no vectorised ``compute_reward``.
    """
    return EnvGoalReward(make_gym(config.env_id, config.wrap, config.env_arguments()))
