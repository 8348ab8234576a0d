"""Defines the settings of the networks and algorithms that only metaworld has, without importing torch."""

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
    """Adam learning rate of the temporary policy, which acts in online_distill while it learns from the teacher."""
    hidden: tuple[int, ...] = (300, 300)
    """Widths of the hidden layers of the temporary policy."""
    teacher_start_step: int = 40_000
    """Environment steps, over all ranks, after which the teacher acts; the temporary policy acts before."""
    steps_per_update: int = 8
    """Environment steps, over all ranks, per update of the temporary policy; the stages expert and student use
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
            raise ConfigError(
                f"represent.net.width={self.width} is not a multiple of represent.net.heads={self.heads}. Write "
                f"represent.net.width=32 represent.net.heads=8."
            )
        if self.length < 2:
            raise ConfigError(
                f"represent.net.length={self.length} is below 2, but an action needs a state before and after it. "
                f"Write represent.net.length=2 or more."
            )


@dataclass(frozen=True)
class RepresentConfig:
    lr: float = 2e-4
    """Adam learning rate."""
    mask_ratio: float = 0.15
    """Share of the tokens that are masked. Of these, 80 % show zeros, 10 % the content of another trajectory, and 10 %
    their own content."""
    contrast: float = 0.25
    """Weight of the contrastive loss between two masked views of a trajectory, relative to the mean squared errors of
    the predicted tokens."""
    temperature: float = 0.15
    """Temperature of the contrastive loss."""
    max_grad_norm: float = 0.0
    """Gradients are clipped to this 2-norm; 0 does not clip."""
    net: TrajectoryEncoderConfig = field(default_factory=TrajectoryEncoderConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.mask_ratio <= 1:
            raise ConfigError(
                f"represent.mask_ratio={self.mask_ratio:g} is outside 0 to 1. Write represent.mask_ratio=0.15."
            )


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
    """Initial weight of the reward bonus for actions of the collective policy, which is distilled from all experts; 0
    is SAC without a bonus."""
    hold_steps: int = 4_000
    """Environment steps, over all ranks, during which the weight of the bonus is constant."""
    fade_steps: int = 20_000
    """Environment steps, over all ranks, in which the weight of the bonus then falls to 0."""

    def __post_init__(self) -> None:
        at_least(self, hold_steps=0, fade_steps=0)
