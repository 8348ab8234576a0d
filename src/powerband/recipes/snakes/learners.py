"""Learners of snakes: builds PPO, DDPG or BiCNet from a configuration, and loads trained ones from run folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from powerband.algos.ddpg import DDPG
from powerband.algos.ppo import PPO
from powerband.core.config import stored_config
from powerband.core.config.saved import recipe_of
from powerband.core.config.texts import SHOWN_PATH, shortened
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoints.checkpoint import resolve_resume
from powerband.core.run.state_registry import restore_learner
from powerband.data.types import EnvSpec, Learner
from powerband.recipes.snakes.config import OLD_NAMES, Config
from powerband.recipes.snakes.env.env import make_env_spec
from powerband.recipes.snakes.nets.team import TeamMLP
from powerband.recipes.snakes.nets.torus import TorusConv


def make_learner(config: Config, spec: EnvSpec, context: RankContext) -> DDPG | PPO:
    """Creates the learner that `config.algo` names: PPO for ppo, DDPG for ddpg and bicnet.

    Args:
        config: Configuration without automatic choices, the result of `finalize`.
        spec: Observation and action spaces of the boards.
        context: Device, precision and random numbers of this rank.
    """
    if config.algo == "ppo":
        encoder = None
        if config.observation == "planes":
            planes, rows, columns = spec.obs.shape[1:]
            encoder = TorusConv(planes, rows, columns, config.plane_channels)
        return PPO(spec, config.ppo, context, encoder=encoder)
    communicate = "lstm" if config.algo == "bicnet" else config.ddpg.communicate
    settings = replace(config.ddpg, communicate=communicate)
    return DDPG(
        spec,
        settings,
        context,
        lambda inputs, outputs: TeamMLP(inputs, settings.hidden, outputs, settings.communicate),
    )


def build_learner(config: Config, context: RankContext) -> tuple[Learner, EnvSpec, Any]:
    """Creates a learner without boards, for ``powerband doctor`` and for tests.

    Returns:
        The learner, the observation and action spaces of its boards, and the settings of its training loop, such as
        the number of boards and the batch size.
    """
    spec = make_env_spec(config.observation)
    return make_learner(config, spec, context), spec, config.loop


def best_actions(modules: nn.ModuleDict, obs: Tensor) -> Tensor:
    """Computes the most likely actions of a PPO policy for one team on n boards.

    Args:
        modules: The policy network ``net`` and, for the observation ``planes``, the network ``encoder`` before it.
        obs: Observations (n, 3, ...) float32 of the three snakes.

    Returns:
        Actions (n, 3) int64.
    """
    rows = obs.flatten(0, 1)
    if "encoder" in modules:
        rows = modules["encoder"](rows)
    return modules["net"](rows)[0].argmax(-1).view(obs.shape[:2])


def load(folder: Path, context: RankContext | None = None) -> tuple[DDPG | PPO, str]:
    """Loads a trained learner from a run folder or from one of its checkpoints.

    Args:
        folder: The folder.
        context: Device and precision of the learner; None is the CPU in fp32.

    Returns:
        The learner, and the name of the observation that it was trained with, a key of `OBSERVATIONS`.

    Raises:
        ConfigError: The folder is a run of another recipe, its weights do not fit its configuration, or its policy
            needs a memory.
    """
    path, config = checkpoint_and_config(folder)
    learner = make_learner(config, make_env_spec(config.observation), context or RankContext.single())
    restore_learner(path, learner)
    return learner, config.observation


def checkpoint_and_config(folder: Path) -> tuple[Path, Config]:
    """Finds the checkpoint that `folder` names, and reads the configuration of its run. `load` lists the errors."""
    path, _ = resolve_resume(str(folder))
    run = path.parent.parent
    if (recipe := recipe_of(run)) != "snakes":
        raise ConfigError(f"{shortened(run, SHOWN_PATH)} is a run of {recipe}, not of snakes. Name a run of snakes.")
    config: Config = stored_config(run, Config, OLD_NAMES)
    if config.algo == "ppo" and config.ppo.gru:
        raise ConfigError(
            f"{shortened(run, SHOWN_PATH)} has ppo.gru={config.ppo.gru}. A player of snakes has no memory from move to "
            f"move. Train a policy with ppo.gru=0."
        )
    return path, config


def weights_of(learner: DDPG | PPO) -> nn.Module:
    """Returns the module with the parameters of the policy; its ``state_dict`` equals ``learner.policy_state()``."""
    return learner.actor if isinstance(learner, DDPG) else learner.modules
