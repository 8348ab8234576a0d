"""Creates the environments of sketchnav, for training (ray caster, or MuJoCo in worker processes) and evaluation."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from powerband.core.config.sizes import per_rank
from powerband.core.errors import ConfigError
from powerband.core.machine import rendering
from powerband.core.machine.device import cores
from powerband.core.run.run import Run
from powerband.data.types import VecEnv
from powerband.envs.workers.supervision import Supervision
from powerband.envs.workers.vector import WorkerVecEnv
from powerband.loops.support.env_failures import report_env_failure
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.mujoco.env import MujocoNavEnv
from powerband.recipes.sketchnav.plans.episodes.episodes import Episodes

EPISODE_METRICS = ("success", "spl", "soft_spl", "distance_to_goal")


def make_training_env(config: Config, run: Run, episodes: Episodes) -> VecEnv:
    """Creates the training environments of this rank (a training process of a distributed run).

    Args:
        config: Configuration of the run; `renderer` selects the ray caster or MuJoCo.
        run: Run with the number of ranks and the device.
        episodes: Training episodes, which the environments draw at random.

    Raises:
        ConfigError: The number of environments does not divide by the number of ranks, or the renderer is not
            installed.
    """
    ranks = run.ranks
    num_envs = per_rank("num_envs", config.on_policy.num_envs, ranks.world_size)
    if config.renderer == "mujoco":
        return _make_mujoco_env(config, run, episodes, num_envs)
    run.console.note("Creating the environments. The first start on a machine compiles them for about a minute.")
    return SketchNavEnv(
        num_envs,
        episodes,
        config.rules,
        pixels=config.pixels,
        explored=config.map_squares,
        expert=config.ppo.expert_coef > 0,
        goal=config.net.true_goals,
        device=run.device,
        seed=config.run.seed,
        first_env=ranks.rank * num_envs,
        all_envs=config.on_policy.num_envs,
        sensors=config.sensors,
    )


def _make_mujoco_env(config: Config, run: Run, episodes: Episodes, num_envs: int) -> WorkerVecEnv:
    """Creates environments in supervised worker processes, which render with MuJoCo.

    Args:
        config: Configuration of the run.
        run: Run with the folder, the ranks and the device.
        episodes: Training episodes; they are written to a file that the workers read.
        num_envs: Number of environments on this rank.

    Raises:
        ConfigError: MuJoCo, or the OpenGL library that it renders with, is not installed.
    """
    if find_spec("mujoco") is None:
        raise ConfigError("renderer=mujoco needs MuJoCo. Run pip install 'powerband[gym]', or write renderer=caster.")
    if not os.environ.get("MUJOCO_GL"):  # Run.start sets it if it finds a library
        raise ConfigError(
            f"renderer=mujoco needs EGL or OSMesa, and neither is installed. Run {rendering.INSTALL}, or write "
            f"renderer=caster."
        )
    ranks, file = run.ranks, Path(config.episode_file)
    own = file.suffix != ".safetensors"  # the workers read no other format
    if own:
        file = run.dir / "episodes.safetensors"
        if ranks.leads:
            episodes.save(file, config.scenes, "train", config.episode_seed)
        ranks.barrier()
    workers = config.num_workers
    if workers < 0:
        workers = max(1, cores() // ranks.world_size) * (2 if config.on_policy.double_buffer else 1)
    options = {
        "file": str(file.absolute()),
        "rules": asdict(config.rules),
        "pixels": config.pixels,
        "sensors": asdict(config.sensors),
    }
    return WorkerVecEnv(
        [(MujocoNavEnv, options)] * num_envs,
        num_workers=min(num_envs, workers),
        device=run.device,
        seed=config.run.seed,
        first_env=ranks.rank * num_envs,
        episode_metrics=EPISODE_METRICS,
        supervision=Supervision(),
        on_failure=partial(report_env_failure, run),
    )


def make_evaluation_env(
    config: Config,
    episodes: Episodes,
    num_envs: int,
    order: Tensor | None,
    first_env: int = 0,
    device: torch.device | str = "cpu",
) -> SketchNavEnv:
    """Creates an environment that plays the episodes in order.

    Args:
        config: Configuration of the run.
        episodes: Episodes of a split, such as ``val_unseen``.
        num_envs: Number of agents (rows).
        order: Numbers (n,) int64 of the episodes to play, in this order; None plays all.
        first_env: Position in `order` of the first episode that row 0 plays.
        device: Device of the environment.
    """
    return SketchNavEnv(
        num_envs,
        episodes,
        config.rules,
        pixels=config.pixels,
        explored=config.map_squares,
        sequential=True,
        order=order,
        device=device,
        first_env=first_env,
        sensors=config.sensors,
    )
