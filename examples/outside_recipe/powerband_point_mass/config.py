"""Settings of point-mass. This file does not import torch, so that help is printed quickly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from powerband.algos.settings import PPOConfig, SACConfig
from powerband.core.config import Range, RunConfig, check_ranges
from powerband.core.config.ranges import Size
from powerband.core.recipe import Algorithm
from powerband.loops.config import OffPolicyConfig, OnPolicyConfig

ALGORITHMS = {
    "ppo": Algorithm("powerband.algos.ppo:PPO", PPOConfig(hidden=(64, 64), lr=1e-3, entropy_coef=0.0), "on_policy"),
    "sac": Algorithm("powerband.algos.sac:SAC", SACConfig(hidden=(64, 64)), "off_policy"),
}


@dataclass(frozen=True)
@check_ranges
class Config:
    algo: str = "ppo"
    """Algorithm: ppo or sac."""
    horizon: Annotated[int, Range(at_least=1, at_most=100_000)] = 50
    """Steps of an episode; its end is a truncation."""
    speed: Annotated[float, Range(above=0, at_most=1)] = 0.1
    """Largest distance of one step along each axis; the plane reaches from -1 to 1."""
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=100_000))
    on_policy: OnPolicyConfig = field(default_factory=lambda: OnPolicyConfig(num_envs=64, num_steps=25, epochs=4))
    off_policy: OffPolicyConfig = field(default_factory=lambda: OffPolicyConfig(num_envs=16, update_interval=16))

    @property
    def loop(self) -> OnPolicyConfig | OffPolicyConfig:
        """Sizes of the loop that the chosen algorithm runs in."""
        return self.on_policy if ALGORITHMS[self.algo].loop == "on_policy" else self.off_policy


@dataclass(frozen=True)
@check_ranges
class Evaluation:
    """Options of ``powerband eval``."""

    episodes: Size = 200
    """Episodes to play."""


def check(config: Config, world_size: int) -> None:
    """Refuses sizes that do not divide by the number of ranks."""
    config.loop.check(world_size)
