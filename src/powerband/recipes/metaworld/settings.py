"""Defines the settings of the networks and algorithms that only metaworld has, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from powerband.core.config.ranges import (
    Coefficient,
    Count,
    Interval,
    LearningRate,
    NoiseScale,
    NonNegative,
    Positive,
    Range,
    Share,
    ShareBelowOne,
    Size,
    SizeOrZero,
    Width,
    Widths,
    check_ranges,
)
from powerband.core.errors import ConfigError


@dataclass(frozen=True)
@check_ranges
class CollectConfig:
    interval: Count = 10_000
    """Environment steps, over all ranks, between two samples of the newest transitions for distillation; 0 takes no
    samples."""
    samples: Size = 800
    """Newest transitions in one sample, over all ranks."""
    size: Size = 1_000_000
    """Transitions that are stored for distillation, over all ranks; the oldest are discarded first."""

    def __post_init__(self) -> None:
        if 0 < self.interval < self.samples:
            raise ConfigError(
                f"collect.samples={self.samples} is more than the {self.interval} steps between two samples "
                f"(collect.interval), so transitions would be stored twice. Write collect.samples={self.interval}."
            )


@dataclass(frozen=True)
@check_ranges
class ImitateConfig:
    lr: LearningRate = 2e-4
    """Adam learning rate of the temporary policy, which acts in online_distill while it learns from the teacher."""
    hidden: Widths = (300, 300)
    """Widths of the hidden layers of the temporary policy."""
    first_random_steps: Count = 8_000
    """Environment steps, over all ranks, with random actions at the start of online_distill; the temporary policy acts
    and learns afterwards."""
    teacher_start_step: Count = 40_000
    """Environment steps, over all ranks, after which the teacher acts; the temporary policy acts before."""
    steps_per_update: Interval = 8
    """Environment steps, over all ranks, per update of the temporary policy; the stages expert and student use
    off_policy.update_interval instead."""


@dataclass(frozen=True)
@check_ranges
class TrajectoryEncoderConfig:
    length: Annotated[int, Range(at_least=2, at_most=100000)] = 20
    """Largest number of states in a trajectory; an action needs a state before and after it."""
    width: Width = 32
    """Width of a token."""
    layers: Annotated[int, Range(at_least=1, at_most=1024)] = 3
    """Number of encoder layers."""
    heads: Annotated[int, Range(at_least=1, at_most=1024)] = 8
    """Number of attention heads."""
    feedforward: Width = 128
    """Width of the hidden layer inside an encoder layer."""
    code: Width = 6
    """Entries of the code z."""
    dropout: ShareBelowOne = 0.1
    """Dropout rate inside the encoder layers."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them: less memory, a third more time."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(
                f"represent.net.width={self.width} is not a multiple of represent.net.heads={self.heads}. Write "
                f"represent.net.width=32 represent.net.heads=8."
            )


@dataclass(frozen=True)
@check_ranges
class RepresentConfig:
    lr: LearningRate = 2e-4
    """Adam learning rate."""
    mask_ratio: Share = 0.15
    """Share of the tokens that are masked. Of these, 80 % show zeros, 10 % the content of another trajectory, and 10 %
    their own content."""
    contrast: Coefficient = 0.25
    """Weight of the contrastive loss between two masked views of a trajectory, relative to the mean squared errors of
    the predicted tokens."""
    temperature: Positive = 0.15
    """Temperature of the contrastive loss."""
    max_grad_norm: NonNegative = 0.0
    """Gradients are clipped to this 2-norm; 0 does not clip."""
    compile: bool = False
    """Compile the encoder with torch.compile while it is trained."""
    net: TrajectoryEncoderConfig = field(default_factory=TrajectoryEncoderConfig)


@dataclass(frozen=True)
@check_ranges
class DistillConfig:
    actor_updates: SizeOrZero = 50_001
    """Updates of the policy."""
    critic_updates: SizeOrZero = 10_000
    """Updates of the critics, which follow the updates of the policy."""
    lr: LearningRate = 2e-4
    """Adam learning rate."""
    hidden: Widths = (300, 300)
    """Widths of the hidden layers."""
    log_std_coef: Coefficient = 0.2
    """Weight of the error of the log standard deviations, relative to the error of the means."""
    max_grad_norm: NonNegative = 0.0
    """Gradients are clipped to this 2-norm; 0 does not clip."""
    compile: bool = False
    """Compile the losses with torch.compile."""


@dataclass(frozen=True)
@check_ranges
class StudentConfig:
    bonus: Coefficient = 1.0
    """Initial weight of the reward bonus for actions of the collective policy, which is distilled from all experts; 0
    is SAC without a bonus."""
    hold_steps: Count = 4_000
    """Environment steps, over all ranks, during which the weight of the bonus is constant."""
    fade_steps: Count = 20_000
    """Environment steps, over all ranks, in which the weight of the bonus then falls to 0."""
    guide_share: Share = 0.0
    """Share of the training episodes that the collective policy begins; its steps count as environment steps. It works
    with and without a bonus (student.bonus=0)."""
    guide_noise: NoiseScale = 0.1
    """Standard deviation of the noise on the actions of guide_share, which are in [-1, 1]."""
    guide_handover: SizeOrZero = 250
    """Last step at which the student takes over an episode that the collective policy began. Each of these episodes
    draws its own step between 0 and this number. 0: the collective policy acts until the end."""

    def __post_init__(self) -> None:
        for name in ("guide_noise", "guide_handover"):
            value = getattr(self, name)
            if not self.guide_share and value != getattr(StudentConfig, name):
                raise ConfigError(
                    f"student.{name}={value} has no effect with student.guide_share=0, because the collective policy "
                    f"acts in no episode. Write student.guide_share=0.5, or remove student.{name}."
                )
