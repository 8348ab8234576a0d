"""Agents of sketchnav for training: rows of one batch with the ray caster, worker processes with MuJoCo."""

from __future__ import annotations

import os
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from powerband.core import rendering
from powerband.core.config import ConfigError
from powerband.core.device import cores
from powerband.core.scaling import per_rank
from powerband.data.types import VecEnv
from powerband.envs.sketchnav.env import SketchNavEnv
from powerband.envs.sketchnav.episodes import Episodes
from powerband.envs.sketchnav.mujoco_env import MujocoNavEnv
from powerband.envs.supervision import Fault, Supervision
from powerband.envs.vector import WorkerVecEnv
from powerband.recipes.sketchnav_sets import seed_of

if TYPE_CHECKING:
    from powerband.core.run import Run
    from powerband.recipes.sketchnav import Config

FIGURES = ("success", "spl", "soft_spl", "distance_to_goal")
EXPLORED = 96
"""Squares of a quarter metre along the map of what was explored: it reaches 12 m from the start."""


def squares_of(config: Config) -> int:
    """Squares along the explored map that the policy of `config` needs; 0 for none."""
    return EXPLORED if config.net.goal else 0


def agents_of(config: Config, run: Run, episodes: Episodes) -> VecEnv:
    """This rank's agents on `episodes`."""
    ranks, seed = run.ranks, config.run.seed
    envs = per_rank("num_envs", config.on_policy.num_envs, ranks.world_size)
    if config.renderer == "mujoco":
        return _rendered(config, run, episodes, envs)
    run.console.note("building the agents; the first start on a machine compiles their rules, about a minute")
    return SketchNavEnv(
        envs,
        episodes,
        config.rules,
        pixels=config.pixels,
        explored=squares_of(config),
        expert=config.ppo.expert_coef > 0,
        device=run.device,
        seed=seed,
        first_env=ranks.rank * envs,
        all_envs=config.on_policy.num_envs,
        sensors=config.sensors,
    )


def _rendered(config: Config, run: Run, episodes: Episodes, envs: int) -> WorkerVecEnv:
    """Supervised workers, each with a scene of MuJoCo for the plans that its agents are in.

    Raises:
        ConfigError: MuJoCo, or what it would render with, is not installed.
    """
    if find_spec("mujoco") is None:
        raise ConfigError("renderer=mujoco needs MuJoCo: pip install 'powerband[gym]', or write renderer=caster.")
    if not os.environ.get("MUJOCO_GL"):  # the run has set it where it found something
        raise ConfigError(
            f"renderer=mujoco: neither EGL nor OSMesa is here. Run {rendering.INSTALL}, or write renderer=caster."
        )
    ranks, file = run.ranks, Path(config.episode_file or run.dir / "episodes.safetensors")
    if not config.episode_file:
        if ranks.leads:
            episodes.save(file, config.scenes, "train", seed_of(config))
        ranks.barrier()
    workers = config.num_workers
    if workers < 0:
        workers = max(1, cores() // ranks.world_size) * (2 if config.on_policy.double_buffer else 1)

    def tell(fault: Fault) -> None:
        run.console.note(str(fault))

    words = {"file": str(file.absolute()), "rules": asdict(config.rules), "pixels": config.pixels}
    words["sensors"] = asdict(config.sensors)
    return WorkerVecEnv(
        [(MujocoNavEnv, words)] * envs,
        num_workers=min(envs, workers),
        device=run.device,
        seed=config.run.seed,
        first_env=ranks.rank * envs,
        figures=FIGURES,
        supervision=Supervision(),
        tell=tell,
    )
