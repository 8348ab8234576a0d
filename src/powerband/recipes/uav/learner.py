"""Learner: builds the COMA or IAC learner of uav with its networks, and loads trained learners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from powerband.algos.coma import COMA, Choose
from powerband.algos.settings import COMAConfig
from powerband.core.config import stored_config
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoints.checkpoint import resolve_resume
from powerband.core.run.state_registry import restore_learner
from powerband.data.types import EnvSpec
from powerband.loops.config import OnPolicyConfig
from powerband.recipes.uav.config import OLD_NAMES, Config
from powerband.recipes.uav.env.env import make_env_spec
from powerband.recipes.uav.map_net import MapNet, critic_inputs
from powerband.recipes.uav.settings import World


def make_learner(
    spec: EnvSpec, settings: COMAConfig, context: RankContext, counterfactual: bool, choose: Choose | None = None
) -> COMA:
    """Creates a COMA or IAC learner with its networks.

    Args:
        spec: Observation and action spaces of the missions.
        settings: Hyper-parameters.
        context: Device, precision and random numbers of this rank.
        counterfactual: True for COMA, False for IAC.
        choose: Function that samples only allowed moves, such as `UavEnv.masked_sample`; None allows every move.
    """

    def build_network(channels: int, outputs: int) -> MapNet:
        return MapNet(channels, outputs, settings.width)

    return COMA(spec, settings, context, build_network, critic_inputs, choose, counterfactual)


def build_learner(config: Config, context: RankContext) -> tuple[COMA, EnvSpec, OnPolicyConfig]:
    """Creates a learner without missions, for ``powerband doctor``, for tests, and to load a trained learner.

    Returns:
        The learner, the observation and action spaces of its missions, and the settings of its training loop, such as
        the number of missions per rollout.
    """
    spec = make_env_spec(config.world)
    return make_learner(spec, config.coma, context, config.algo == "coma"), spec, config.on_policy


def load_learner(folder: Path, config: Config, context: RankContext | None = None) -> COMA:
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


def load_other_run(folder: Path, world: World) -> tuple[COMA, World]:
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
