"""Learner: builds the learner of uav with its networks, and loads trained learners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from powerband.algos.coma import COMA, Choose
from powerband.algos.mappo import MAPPO
from powerband.core.config import stored_config
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoints.checkpoint import resolve_resume
from powerband.core.run.state_registry import restore_learner
from powerband.data.types import EnvSpec
from powerband.loops.config import OnPolicyConfig
from powerband.recipes.uav.config import OLD_NAMES, Config, algorithm_settings
from powerband.recipes.uav.env.env import make_env_spec
from powerband.recipes.uav.map_net import MapNet, critic_inputs, state_inputs
from powerband.recipes.uav.settings import World

TeamLearner = COMA | MAPPO
"""Learner of a team; both have an ``actor`` and a ``critic`` and compute the ``probability`` of each move."""


def make_learner(
    algo: str, spec: EnvSpec, settings: Any, context: RankContext, choose: Choose | None = None
) -> TeamLearner:
    """Creates a learner with its networks.

    Args:
        algo: Name of the algorithm: coma, iac or mappo.
        spec: Observation and action spaces of the missions.
        settings: Hyper-parameters of the algorithm, `COMAConfig` or `MAPPOConfig`.
        context: Device, precision and random numbers of this rank.
        choose: Function that samples only allowed moves, such as `UavEnv.masked_sample`; None allows every move.
    """

    def build_network(channels: int, outputs: int) -> MapNet:
        return MapNet(channels, outputs, settings.width)

    if algo == "mappo":
        return MAPPO(spec, settings, context, build_network, state_inputs, choose)
    return COMA(spec, settings, context, build_network, critic_inputs, choose, counterfactual=algo == "coma")


def build_learner(config: Config, context: RankContext) -> tuple[TeamLearner, EnvSpec, OnPolicyConfig]:
    """Creates a learner without missions, for ``powerband doctor``, for tests, and to load a trained learner.

    Returns:
        The learner, the observation and action spaces of its missions, and the settings of its training loop, such as
        the number of missions per rollout.
    """
    spec = make_env_spec(config.world)
    return make_learner(config.algo, spec, algorithm_settings(config), context), spec, config.on_policy


def load_learner(folder: Path, config: Config, context: RankContext | None = None) -> TeamLearner:
    """Loads a trained learner from the newest checkpoint of a run, or from a given checkpoint.

    Args:
        folder: Run folder, or the folder of one of its checkpoints.
        config: Configuration of the run.
        context: Device and precision of the learner; None is the CPU in fp32.
    """
    path, _ = resolve_resume(str(folder))
    learner, _, _ = build_learner(config, context or RankContext.single())
    restore_learner(path, learner)
    return learner


def load_other_run(folder: Path, world: World) -> tuple[TeamLearner, World]:
    """Loads the learner of another run, to fly the missions of `world`.

    The settings of the algorithm, of its networks and of its observations (`centred_maps`) are those of the other run.

    Args:
        folder: Run folder, or the folder of one of its checkpoints.
        world: Settings of the missions.

    Returns:
        The learner, and `world` with the observations that the learner was trained with; the missions are the same.

    Raises:
        ConfigError: The other run has other altitudes, so its moves up and down have another meaning.
    """
    path, _ = resolve_resume(str(folder))
    config: Config = stored_config(path.parent.parent, Config, OLD_NAMES)
    if config.world.altitudes_m != world.altitudes_m:
        own, other = (",".join(f"{height:g}" for height in each.altitudes_m) for each in (world, config.world))
        raise ConfigError(
            f"policies={shortened(str(folder))}: that run was trained with world.altitudes_m={other}, and this run "
            f"with {own}. Name a run with the same altitudes."
        )
    world = replace(world, centred_maps=config.world.centred_maps)
    return load_learner(path, replace(config, world=world)), world
