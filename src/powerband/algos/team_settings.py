"""Settings of COMA and MAPPO, for teams of agents with a central critic. This file does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from powerband.core.config.ranges import (
    Coefficient,
    Interval,
    LearningRate,
    Positive,
    PositiveCount,
    Range,
    Share,
    Width,
    check_ranges,
)
from powerband.core.errors import ConfigError


@dataclass(frozen=True)
@check_ranges
class COMAConfig:
    actor_lr: LearningRate = 1e-5
    """Adam learning rate of the actor."""
    critic_lr: LearningRate = 1e-4
    """Adam learning rate of the critic."""
    epsilon_start: Share = 0.5
    """Initial share of the uniform distribution in the policy."""
    epsilon_end: Share = 0.02
    """Share of the uniform distribution after `epsilon_episodes`."""
    epsilon_episodes: PositiveCount = 10_000
    """Episodes, over all ranks, over which the share falls linearly."""
    target_interval: Interval = 10
    """Rollouts per copy of the critic to the target critic."""
    width: Width = 256
    """Channels of every layer of both networks."""
    max_grad_norm: Positive | None = 10.0
    """Largest 2-norm of the gradients of each network; larger gradients are clipped, None clips nothing."""
    sampled_advantage: bool = False
    """Use the advantage G - sum pi Q of the sampled return instead of Q(s, a) - sum pi Q; IAC always does."""
    entropy_coef: Coefficient = 0.0
    """Weight of the entropy bonus, in addition to the exploration of epsilon."""
    normalize_advantage: bool = False
    """Normalise the advantages of a mini-batch to mean 0 and standard deviation 1, on each rank."""
    compile: bool = False
    """Compile the losses with torch.compile."""

    def __post_init__(self) -> None:
        if self.epsilon_end > self.epsilon_start:
            raise ConfigError(
                f"coma.epsilon_end={self.epsilon_end:g} is above coma.epsilon_start={self.epsilon_start:g}. Write "
                f"coma.epsilon_start=0.5 and coma.epsilon_end=0.02."
            )


@dataclass(frozen=True)
@check_ranges
class MAPPOConfig:
    actor_lr: LearningRate = 5e-4
    """Adam learning rate of the actor."""
    critic_lr: LearningRate = 5e-4
    """Adam learning rate of the critic."""
    clip: Annotated[float, Range(above=0, at_most=1)] = 0.2
    """Range of the probability ratio, 1 - clip to 1 + clip."""
    entropy_coef: Coefficient = 0.01
    """Weight of the entropy bonus."""
    width: Width = 256
    """Channels of every layer of both networks."""
    max_grad_norm: Positive | None = 10.0
    """Largest 2-norm of the gradients of each network; larger gradients are clipped, None clips nothing."""
    compile: bool = False
    """Compile the losses with torch.compile."""
