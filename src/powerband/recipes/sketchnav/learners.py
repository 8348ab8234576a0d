"""Builds the learners of sketchnav: PPO, or imitation of action chunks, both with the encoder that reads the sketch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from powerband.algos.chunks.action_chunks import ActionChunkLearner
from powerband.algos.ppo import PPO
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec
from powerband.nets.chunks.policy import ChunkPolicy
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.env.spec import make_env_spec
from powerband.recipes.sketchnav.env.world import STOP
from powerband.recipes.sketchnav.nets.sketch_net import SketchNet

ACTION_CODES = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
"""Codes (4, 2) of STOP, FORWARD, LEFT, RIGHT: forward or not, and the side. The nearest code gives the action."""
TIMING_SKETCHES = 2
"""Number of sketches of a learner without episodes. Observations for timing contain the episode numbers 0 and 1."""


def build_encoder(config: Config, sketches: Tensor) -> SketchNet:
    """Builds the network that encodes observations, which `config` describes.

    Args:
        config: Configuration of the run.
        sketches: Sketches (E, 3, s, s) uint8 of E episodes, with a side of s pixels.
    """
    net, is_ppo = config.net, config.algo == "ppo"
    if net.image_encoder == "auto":
        net = replace(net, image_encoder="plain" if is_ppo else "efficient")
    return SketchNet(sketches, config.pixels, net, config.scenes.page_m, 1 if is_ppo else config.chunks.frames)


def build_ppo(config: Config, spec: EnvSpec, sketches: Tensor, context: RankContext) -> PPO:
    """Builds PPO with a new encoder of observations.

    Args:
        config: Configuration of the run.
        spec: Observations and actions of the environment.
        sketches: Sketches (E, 3, s, s) uint8 of E episodes, with a side of s pixels.
        context: Device, precision and random streams of the rank.
    """
    learner = PPO(spec, config.ppo, context, encoder=build_encoder(config, sketches))
    head = learner.net.head
    with torch.no_grad():
        head.bias[STOP] = config.net.stop_logit
    return learner


def build_chunk_learner(config: Config, sketches: Tensor, context: RankContext) -> ActionChunkLearner:
    """Builds a diffusion policy or a behaviour clone, which predicts chunks (sequences) of actions.

    Args:
        config: Configuration of the run; `algo` selects the diffusion policy or the clone.
        sketches: Sketches (E, 3, s, s) uint8 of E episodes, with a side of s pixels.
        context: Device, precision and random streams of the rank.
    """
    actions, codes = ACTION_CODES.shape
    unet = config.chunks.unet if config.algo == "diffusion" else None

    def build_policy() -> ChunkPolicy:
        return ChunkPolicy(
            build_encoder(config, sketches), config.chunks.horizon, actions, codes, unet, config.chunks.gru
        )

    return ActionChunkLearner(chunk_spec(config), config.chunks, context, ACTION_CODES, build_policy)


def ppo_spec(config: Config) -> EnvSpec:
    """Returns the shapes and types of the observations and actions of PPO."""
    expert, goal = config.ppo.expert_coef > 0, config.net.true_goals
    return make_env_spec(config.pixels, config.rules, config.map_squares, expert, goal)


def chunk_spec(config: Config) -> EnvSpec:
    """Returns the observations and actions of a policy that predicts chunks (sequences) of actions.

    An observation has the newest ``chunks.frames`` camera images, stacked along the channels.
    """
    spec, frames = make_env_spec(config.pixels, config.rules), config.chunks.frames
    obs: dict[str, Any] = {name: spec.obs[name] for name in ("gps", "compass", "episode")}
    for name in config.camera_keys:
        channels, *size = spec.obs[name].shape
        obs[name] = TensorSpec((frames * channels, *size), torch.uint8)
    return replace(spec, obs=obs)


def build_learner(config: Config, context: RankContext) -> tuple[PPO | ActionChunkLearner, EnvSpec, Any]:
    """Builds a learner with two blank sketches, for example to load a checkpoint or to measure its speed.

    Args:
        config: Configuration of the run.
        context: Device, precision and random streams of the learner.

    Returns:
        The learner, the observations and actions of its environment, and the settings of its training loop.
    """
    size = config.scenes.sketch_px
    sketches = torch.full((TIMING_SKETCHES, 3, size, size), 255, dtype=torch.uint8, device=context.device)
    if config.algo == "ppo":
        spec = ppo_spec(config)
        return build_ppo(config, spec, sketches, context), spec, config.loop
    return build_chunk_learner(config, sketches, context), chunk_spec(config), config.loop
