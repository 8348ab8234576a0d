"""Learners of sketchnav: the encoder that reads the sketch, and what learns with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from powerband.algos.chunks import Chunks
from powerband.algos.ppo import PPO
from powerband.core.distributed import Ranks
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.data.types import EnvSpec, TensorSpec
from powerband.envs.sketchnav.env import spec_of
from powerband.nets.sketch_net import SketchNet
from powerband.recipes.sketchnav_agents import squares_of
from powerband.recipes.sketchnav_demos import pictures_of

if TYPE_CHECKING:
    from powerband.recipes.sketchnav import Config

CODES = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
"""Of STOP, FORWARD, LEFT, RIGHT: ahead or not, and the side. The nearest code decodes."""


def navigator(config: Config, sketches: torch.Tensor) -> SketchNet:
    """The encoder of `config` with its sketches (E, 3, s, s)."""
    net, alone = config.net, config.algo == "ppo"
    if net.pictures == "auto":
        net = replace(net, pictures="plain" if alone else "efficient")
    return SketchNet(sketches, config.pixels, net, config.scenes.page_m, 1 if alone else config.chunks.frames)


def imitator(config: Config, sketches: torch.Tensor, ranks: Ranks, precision: Precision, noise: NoiseSource) -> Chunks:
    """A new diffusion policy or clone."""
    return Chunks(config.algo, config.chunks, navigator(config, sketches), CODES, ranks, precision, noise)


def networks(config: Config, device: Any, precision: Precision) -> tuple[Any, EnvSpec, Any]:
    """A new learner of `config`, what it sees, and its loop's sizes; `doctor` times it."""
    spec = spec_of(config.pixels, config.rules, squares_of(config), config.ppo.expert_coef > 0)
    size = config.scenes.sketch_px
    # Two, as whole numbers that an observation is filled with for timing are 0 and 1.
    sketches = torch.full((2, 3, size, size), 255, dtype=torch.uint8, device=device)
    noise = NoiseSource(0, device)
    if config.algo != "ppo":
        ranks = Ranks(device=torch.device(device))
        return imitator(config, sketches, ranks, precision, noise), seen_by_chunks(config), config.offline
    learner = PPO(spec, config.ppo, device, precision, noise, encoder=navigator(config, sketches))
    return learner, spec, config.on_policy


def seen_by_chunks(config: Config) -> EnvSpec:
    """What a policy of chunks sees and does."""
    plain, frames = spec_of(config.pixels, config.rules), config.chunks.frames
    obs: dict[str, Any] = {name: plain.obs[name] for name in ("gps", "compass", "episode")}
    for name in pictures_of(config):
        channels, *size = plain.obs[name].shape
        obs[name] = TensorSpec((frames * channels, *size), torch.uint8)
    return replace(plain, obs=obs)
