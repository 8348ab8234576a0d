"""Settings of the policies that predict chunks of actions from demonstrations. This file does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from powerband.core.config.ranges import (
    ChunkLength,
    DiffusionSteps,
    Frames,
    LearningRate,
    Positive,
    SequenceLength,
    ShareBelowOne,
    WeightDecay,
    WidthOrZero,
    Widths,
    check_ranges,
)
from powerband.core.errors import ConfigError


@dataclass(frozen=True)
@check_ranges
class ChunkConfig:
    lr: LearningRate = 1e-4
    """Learning rate of AdamW."""
    weight_decay: WeightDecay = 1e-4
    """Weight decay of AdamW."""
    max_grad_norm: Positive = 1.0
    """Largest 2-norm of the gradients; larger gradients are clipped."""
    ema: ShareBelowOne = 0.999
    """Largest decay of the averaged weights, which act; update n uses (1 + n) / (10 + n) if that is less. 0 does not
    average."""
    horizon: ChunkLength = 16
    """Actions per chunk."""
    exec_horizon: ChunkLength = 4
    """Actions of a chunk that are executed before the next chunk is sampled."""
    frames: Frames = 3
    """Newest camera images in one observation."""
    gru: WidthOrZero = 0
    """Width of a recurrent layer (GRU) over all observations of an episode, whose state the chunks depend on; 0 builds
    none, so that chunks depend on the newest observation."""
    sequence: SequenceLength = 64
    """Recorded steps of a sequence from which the GRU learns, even. The first half of a sequence in the middle of an
    episode has no loss: it fills the memory."""
    unet: Widths = (256, 512, 1024)
    """Channels of the levels of the U-Net."""
    noise_steps: DiffusionSteps = 1000
    """Diffusion steps in training."""
    predict: Literal["epsilon", "sample"] = "epsilon"
    """Prediction of the network: epsilon is the noise, sample the chunk."""
    sampler: Literal["ddim", "dpm"] = "ddim"
    """Sampler of chunks: DDIM or DPM-Solver++."""
    sample_steps: DiffusionSteps = 10
    """Steps of the sampler."""

    def __post_init__(self) -> None:
        if self.sequence % 2:
            raise ConfigError(f"chunks.sequence={self.sequence} is odd. Write chunks.sequence={self.sequence + 1}.")
        if self.exec_horizon > self.horizon:
            raise ConfigError(
                f"chunks.exec_horizon={self.exec_horizon} is above chunks.horizon={self.horizon}. Write "
                f"chunks.exec_horizon={self.horizon} or less."
            )
        if self.sample_steps > self.noise_steps:
            raise ConfigError(
                f"chunks.sample_steps={self.sample_steps} is above chunks.noise_steps={self.noise_steps}. Write "
                f"chunks.sample_steps={self.noise_steps} or less."
            )
