"""Configuration of uav: its options, algorithms and named variants. This file does not import torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from powerband.algos.team_settings import COMAConfig, MAPPOConfig
from powerband.core.config import RunConfig
from powerband.core.config.ranges import Count, Size, SizeOrZero, check_ranges
from powerband.core.errors import ConfigError
from powerband.core.machine.device import expected_ranks
from powerband.core.recipe import Algorithm
from powerband.loops.config import OnPolicyConfig
from powerband.recipes.uav.settings import World

ALGORITHMS = {
    "coma": Algorithm("powerband.algos.coma:COMA", COMAConfig(), "on_policy"),
    "iac": Algorithm("powerband.algos.coma:COMA", COMAConfig(), "on_policy", section="coma"),
    "mappo": Algorithm("powerband.algos.mappo:MAPPO", MAPPOConfig(), "on_policy"),
}


@dataclass(frozen=True)
@check_ranges
class Config:
    algo: str = "coma"
    """Algorithm: coma has a central critic and a counterfactual baseline, iac has neither; mappo is PPO with a central
    critic of state values."""
    batches: Size = 5
    """Mini-batches of transitions (one per UAV and step) that a rollout collects at least, in complete missions; no
    effect if on_policy.num_envs is not 0."""
    iterations: SizeOrZero = 0
    """Budget in rollouts, instead of env_steps; 0 uses episodes or env_steps."""
    episodes: SizeOrZero = 0
    """Budget in missions over all ranks, instead of env_steps; 0 uses env_steps."""
    eval_missions: Size = 50
    """Missions per evaluation during training."""
    figure_interval: Count = 0
    """Rollouts between two images of a mission in TensorBoard, drawn in a background thread; 0 draws none."""
    histogram_interval: Count = 0
    """Rollouts between two sets of histograms of the weights in TensorBoard; 0 writes none."""
    world: World = field(default_factory=World)
    run: RunConfig = field(default_factory=lambda: RunConfig(precision="auto", env_steps=1454 * 11 * 15))
    on_policy: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(
            num_envs=0, num_steps=0, epochs=5, minibatches=1, minibatch_rows=128, gae_lambda=0.8, anneal_lr=False
        )
    )
    coma: COMAConfig = field(default_factory=COMAConfig)
    mappo: MAPPOConfig = field(default_factory=MAPPOConfig)


def algorithm_settings(config: Config) -> COMAConfig | MAPPOConfig:
    """Returns the section of the algorithm that `config.algo` names; iac reads that of coma."""
    return config.mappo if config.algo == "mappo" else config.coma


def finalize(config: Config, stage: str) -> Config:
    """Returns a copy of the configuration with the missions per rollout and the length of training filled in.

    The path of the map file becomes absolute, so that the run can be continued and evaluated from every folder.

    A mission is an episode: a team of UAVs moves over the map for ``world.budget`` + 1 steps. The length of training,
    given as ``iterations`` or ``episodes``, is converted to environment steps, ``run.env_steps``.

    Args:
        config: Configuration as the user wrote it.
        stage: Name of the stage, here always train; not used.

    Raises:
        ConfigError: A rollout does not contain complete missions, both lengths are given, or an option has no effect.
    """
    mission_steps, loop = config.world.num_steps, config.on_policy
    if loop.num_steps % mission_steps:
        raise ConfigError(
            f"on_policy.num_steps={loop.num_steps} is not a whole number of missions of {mission_steps} moves "
            f"(world.budget + 1). Write on_policy.num_steps=0 for one mission, or a multiple of {mission_steps}."
        )
    if loop.minibatches != 1 or not loop.normalize_advantage:
        raise ConfigError(
            "on_policy.minibatches and on_policy.normalize_advantage have no effect in this recipe. Leave them out, "
            "and write for example on_policy.minibatch_rows=128 and coma.normalize_advantage=true; mappo always "
            "normalises advantages."
        )
    if not loop.num_envs and not loop.minibatch_rows:
        raise ConfigError(
            "on_policy.num_envs=0 computes the number of missions from batches x on_policy.minibatch_rows transitions, "
            "but on_policy.minibatch_rows is 0. Write on_policy.minibatch_rows=1 or more, or on_policy.num_envs=1 or "
            "more."
        )
    if config.iterations and config.episodes:
        raise ConfigError(
            f"iterations={config.iterations} and episodes={config.episodes} are two budgets of one run. "
            f"Write only one of them."
        )
    num_steps = loop.num_steps or mission_steps
    missions = loop.num_envs or _missions_of_batches(config)
    rollout_steps = missions * num_steps
    rollouts = config.iterations or -(-config.episodes * mission_steps // rollout_steps)
    run = replace(config.run, env_steps=rollouts * rollout_steps) if rollouts else config.run
    rows = loop.minibatch_rows or rollout_steps * config.world.n_agents  # 0: one mini-batch with the whole rollout
    loop = replace(loop, num_envs=missions, num_steps=num_steps, minibatch_rows=rows)
    world = config.world
    if world.map_file:
        world = replace(world, map_file=os.path.abspath(os.path.expanduser(world.map_file)))
    return replace(config, world=world, run=run, on_policy=loop, iterations=0, episodes=0)


def _missions_of_batches(config: Config) -> int:
    """Returns the number of missions per rollout, over all ranks, that contain the transitions of `batches`."""
    rows_per_mission = (config.on_policy.num_steps or config.world.num_steps) * config.world.n_agents
    ranks = expected_ranks(config.run)
    return -(-config.batches * config.on_policy.minibatch_rows // (rows_per_mission * ranks)) * ranks


def notices(config: Config) -> list[str]:
    """Returns messages about options without effect.

    Args:
        config: Configuration as the user wrote it, before `finalize` fills in the missions per rollout.
    """
    found, missions, steps = [], config.on_policy.num_envs, config.run.env_steps
    # A run that is continued has both: the missions that finalize computed, and the batches that it computed them from.
    if config.batches != Config.batches and missions not in (0, _missions_of_batches(config)):
        found.append(
            f"batches={config.batches}: no effect with on_policy.num_envs={missions}, the missions per rollout. Leave "
            f"batches out, or write on_policy.num_envs=0."
        )
    budgets = {Config().run.env_steps, *(variant.get("run.env_steps") for variant in VARIANTS.values())}
    budget = "iterations" if config.iterations else "episodes"
    if (config.iterations or config.episodes) and not config.run.resume and steps not in budgets:
        found.append(
            f"env_steps={steps}: no effect with {budget}={getattr(config, budget)}, which is the budget of the run. "
            f"Write only one of them."
        )
    return found


def check(config: Config, world_size: int) -> None:
    """Checks that the sizes of the training loop are divisible by the number of ranks, and that the map file is valid.

    A rank is one training process; `world_size` is their number.

    Raises:
        ConfigError: A size is not divisible, or the map file is missing or invalid.
    """
    config.on_policy.check(world_size)
    if config.world.map_file:
        from powerband.recipes.uav.env.map_file import load_map_file

        load_map_file(config.world)


_MAPPO: dict[str, Any] = {
    "algo": "mappo",
    "world.centred_maps": True,
    "run.env_steps": 1_000_000_000,
    "mappo.width": 64,
    "on_policy.gamma": 0.8,
    "on_policy.epochs": 4,
    "on_policy.anneal_lr": True,
}
"""Settings of MAPPO that do not depend on the machine."""
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"on_policy.minibatch_rows": 60, "run.env_steps": 1500 * 5 * 15, "run.precision": "fp32"},
    "guide": {"on_policy.minibatch_rows": 128, "run.env_steps": 1454 * 11 * 15},
    "fast": {
        "world.centred_maps": True,
        "run.time_limit_s": 900,
        "run.env_steps": 1_000_000_000,
        "coma.actor_lr": 2e-4,
        "coma.critic_lr": 1e-3,
        "coma.sampled_advantage": True,
        "coma.normalize_advantage": True,
        "coma.epsilon_start": 0.3,
        "coma.epsilon_episodes": 3_000,
        "coma.target_interval": 5,
        "coma.width": 64,
        "on_policy.gamma": 0.8,
        "on_policy.num_envs": 32,
        "on_policy.epochs": 1,
        "on_policy.anneal_lr": True,
    },
    "mappo": {**_MAPPO, "run.time_limit_s": 900, "on_policy.num_envs": 32, "on_policy.minibatch_rows": 480},
    "gpu": {**_MAPPO, "run.time_limit_s": 190, "on_policy.num_envs": 512, "on_policy.minibatch_rows": 7680},
    "smoke": {
        "run.threads": 1,  # loops for several threads take twice as long to compile
        "run.env_steps": 4 * 4 * 15,
        "on_policy.num_envs": 4,
        "coma.width": 16,
        "mappo.width": 16,
        "world.map_cells": 121,
    },
}
OLD_NAMES = {
    "networks.device": ("run.gpus", "cpu, cuda, or indices"),
    "device": ("run.gpus", "cpu, cuda, or indices"),
    "networks.batch_size": ("on_policy.minibatch_rows", "transitions of single UAVs, over all ranks"),
    "batch_size": ("on_policy.minibatch_rows", "transitions of single UAVs, over all ranks"),
    "networks.batch_number": "batches",
    "batch_number": "batches",
    "networks.data_passes": "on_policy.epochs",
    "data_passes": "on_policy.epochs",
    "networks.gamma": "on_policy.gamma",
    "networks.lambda": "on_policy.gae_lambda",
    "networks.copy_rate": "coma.target_interval",
    "networks.actor.learning_rate": "coma.actor_lr",
    "networks.critic.learning_rate": "coma.critic_lr",
    "experiment.missions.n_agents": "world.n_agents",
    "experiment.missions.n_episodes": ("iterations", "it counts rollouts of batch_size x batch_number transitions"),
    "n_episodes": ("iterations", "it counts rollouts of batch_size x batch_number transitions"),
    "experiment.missions.eps_max": "coma.epsilon_start",
    "experiment.missions.eps_min": "coma.epsilon_end",
    "experiment.missions.eps_anneal_phase": "coma.epsilon_episodes",
    "experiment.constraints.budget": "world.budget",
    "experiment.uav.communication_range": "world.comm_range_m",
    "experiment.uav.failure_rate": "world.failure_rate",
    "environment.seed": "run.seed",
    "logging.figure_interval": "figure_interval",
    "logging.histogram_interval": "histogram_interval",
}
