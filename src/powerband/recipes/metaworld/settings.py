"""Settings of the networks and algorithms that only metaworld has. This file does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from powerband.core.config import at_least
from powerband.core.errors import ConfigError


@dataclass(frozen=True)
class CollectConfig:
    interval: int = 10_000
    """Environment steps, over all ranks, between two samples of the newest transitions for distillation; 0 takes no
    samples."""
    samples: int = 800
    """Newest transitions in one sample, over all ranks."""
    size: int = 1_000_000
    """Transitions that are stored for distillation, over all ranks; the oldest are discarded first."""

    def __post_init__(self) -> None:
        at_least(self, interval=0, samples=1, size=1)


@dataclass(frozen=True)
class ImitateConfig:
    lr: float = 2e-4
    """Adam learning rate of the temporary policy."""
    hidden: tuple[int, ...] = (300, 300)
    """Widths of the hidden layers of the temporary policy."""
    teacher_start_step: int = 40_000
    """Environment steps, over all ranks, after which the teacher acts; the temporary policy acts before."""
    steps_per_update: int = 8
    """Environment steps, over all ranks, per update of the temporary policy; experts and students use
    off_policy.update_interval instead."""

    def __post_init__(self) -> None:
        at_least(self, teacher_start_step=0, steps_per_update=1)


@dataclass(frozen=True)
class TrajectoryEncoderConfig:
    length: int = 20
    """Largest number of states in a trajectory."""
    width: int = 32
    """Width of a token."""
    layers: int = 3
    """Number of encoder layers."""
    heads: int = 8
    """Number of attention heads."""
    feedforward: int = 128
    """Width of the hidden layer inside an encoder layer."""
    code: int = 6
    """Entries of the code z."""
    dropout: float = 0.1
    """Dropout rate inside the encoder layers."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them: less memory, a third more time."""

    def __post_init__(self) -> None:
        at_least(self, layers=1, heads=1, code=1)
        if self.width % self.heads:
            raise ConfigError(f"width={self.width} does not divide by heads={self.heads}. Write width=32 and heads=8.")
        if self.length < 2:
            raise ConfigError(
                f"length={self.length} is below 2, but a trajectory holds an action. Write length=2 or more."
            )


@dataclass(frozen=True)
class RepresentConfig:
    lr: float = 2e-4
    """Adam learning rate."""
    mask_ratio: float = 0.15
    """Share of the tokens that are masked. Of these, 80 % show zeros, 10 % the content of another trajectory, and 10 %
    their own content."""
    contrast: float = 0.25
    """Weight of the contrastive loss between two views, relative to the mean squared errors."""
    temperature: float = 0.15
    """Temperature of the contrastive loss."""
    max_grad_norm: float = 0.0
    """Gradients are clipped to this 2-norm; 0 does not clip."""
    net: TrajectoryEncoderConfig = field(default_factory=TrajectoryEncoderConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.mask_ratio <= 1:
            raise ConfigError(f"mask_ratio={self.mask_ratio:g} is outside 0 to 1. Write mask_ratio=0.15.")


@dataclass(frozen=True)
class DistillConfig:
    actor_updates: int = 50_001
    """Updates of the policy."""
    critic_updates: int = 10_000
    """Updates of the critics, which follow the updates of the policy."""
    lr: float = 2e-4
    """Adam learning rate."""
    hidden: tuple[int, ...] = (300, 300)
    """Widths of the hidden layers."""
    log_std_coef: float = 0.2
    """Weight of the error of the log standard deviations, relative to the error of the means."""
    max_grad_norm: float = 0.0
    """Gradients are clipped to this 2-norm; 0 does not clip."""

    def __post_init__(self) -> None:
        at_least(self, actor_updates=0, critic_updates=0)


@dataclass(frozen=True)
class StudentConfig:
    bonus: float = 1.0
    """Weight at the start of the bonus for the collective policy's actions; 0 is SAC from scratch."""
    hold_steps: int = 4_000
    """Environment steps, over all ranks, during which the weight is constant."""
    fade_steps: int = 20_000
    """Environment steps, over all ranks, in which the weight then falls to 0."""

    def __post_init__(self) -> None:
        at_least(self, hold_steps=0, fade_steps=0)
