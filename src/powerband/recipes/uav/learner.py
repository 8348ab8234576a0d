"""Learner: builds the networks and the algorithm of uav, and loads trained ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from powerband.algos.coma import COMA, Choose
from powerband.algos.settings import COMAConfig
from powerband.core.config import from_json
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoint import load_checkpoint, resolve_resume
from powerband.data.types import EnvSpec
from powerband.loops.config import OnPolicyConfig
from powerband.recipes.uav.config import Config
from powerband.recipes.uav.env.env import make_env_spec
from powerband.recipes.uav.map_net import MapNet, critic_inputs
from powerband.recipes.uav.settings import World


def make_learner(
    spec: EnvSpec, settings: COMAConfig, context: RankContext, counterfactual: bool, choose: Choose | None = None
) -> COMA:
    """Creates the algorithm with its networks.

    Args:
        spec: Spaces of the missions.
        settings: Settings of the algorithm.
        context: Rank that the learner runs on.
        counterfactual: True for COMA, false for IAC.
        choose: Samples moves with masks, `UavEnv.masked_sample`; None masks no move.
    """

    def build_network(channels: int, outputs: int) -> MapNet:
        return MapNet(channels, outputs, settings.width)

    return COMA(spec, settings, context, build_network, critic_inputs, choose, counterfactual)


def build_learner(config: Config, context: RankContext) -> tuple[COMA, EnvSpec, OnPolicyConfig]:
    """Creates a learner of a finalized configuration; returns it, the spaces of its missions, and the loop's sizes."""
    spec = make_env_spec(config.world)
    return make_learner(spec, config.coma, context, config.algo == "coma"), spec, config.on_policy


def load_learner(folder: Path, config: Config) -> COMA:
    """Loads the learner of a run of `config` from the newest checkpoint in a run folder, or from a checkpoint."""
    path, _ = resolve_resume(str(folder))
    learner, _, _ = build_learner(config, RankContext.single())
    learner.load_state_dict(load_checkpoint(path, "shared")[0]["learner"])
    return learner


def load_other_run(folder: Path, world: World) -> COMA:
    """Loads the learner of another run for missions in `world`."""
    path, _ = resolve_resume(str(folder))
    file = path.parent.parent / "config.json"
    config = from_json(Config, file.read_text(encoding="utf-8"), str(file))
    return load_learner(path, replace(config, world=world))
