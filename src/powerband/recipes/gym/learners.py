"""Learners of gym: the networks and optimisers of an algorithm for the observations of an environment."""

from __future__ import annotations

from typing import Any

from powerband.algos.settings import PPOConfig
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.core.recipe import load_object
from powerband.data.types import EnvSpec, Learner
from powerband.nets.observations.encoders import ObsEncoder, needs_encoder
from powerband.recipes.gym.config import ALGORITHMS, Config
from powerband.recipes.gym.environments import make_env


def make_learner(config: Config, spec: EnvSpec, context: RankContext) -> Learner:
    """Creates the learner (networks and optimisers) of the algorithm ``config.algo``.

    Observations with images or categories pass through an encoder network; others reach the networks directly.

    Args:
        config: Configuration of the run.
        spec: Observations and actions of the environment.
        context: Device, precision and random streams of the rank.

    Raises:
        ConfigError: The algorithm does not support the spaces or the settings.
    """
    settings = getattr(config, config.algo)
    central = isinstance(settings, PPOConfig) and not settings.shared_trunk
    if isinstance(spec.obs, dict) and "state" in spec.obs and not central:
        raise ConfigError(
            f"The observation of env_id={config.env_id} has an entry named state, which only a central critic reads, "
            f"but algo={config.algo}{' with ppo.shared_trunk=true' if config.algo == 'ppo' else ''} has none. Rename "
            f"the entry so that the policy reads it, or write algo=ppo ppo.shared_trunk=false."
        )
    images = needs_encoder(spec.obs, spec.num_agents)
    encoder = ObsEncoder(spec.obs, spec.num_agents, config.image_net) if images else None
    return load_object(ALGORITHMS[config.algo].learner)(spec, settings, context, encoder)


def build_learner(config: Config, context: RankContext) -> tuple[Learner, EnvSpec, Any]:
    """Creates a learner (networks and optimisers) without a run, for example for an evaluation.

    Args:
        config: Configuration of the run.
        context: Device, precision and random streams of the learner.

    Returns:
        The learner, the observations and actions of its environment, and the settings of its training loop.
    """
    env = make_env(config, 1, 0, config.run.seed)
    env.close()
    return make_learner(config, env.spec, context), env.spec, config.loop
