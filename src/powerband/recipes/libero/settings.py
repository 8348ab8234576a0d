"""Defines settings of libero: learner, trained image encoder, rendering and evaluation. It does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from powerband.core.config import at_least
from powerband.core.errors import ConfigError

Quality = Literal["coarse", "plain", "full"]
"""Rendering quality of a frame; see the option ``quality``."""


@dataclass(frozen=True)
class RDTConfig:
    """Settings of the RDT learner."""

    lr: float = 1e-4
    """AdamW learning rate, constant after the warm-up."""
    lr_warmup_updates: int = 500
    """Updates in which the learning rate rises from 0."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    eps: float = 1e-8
    """Constant that AdamW adds to the root of the second moment."""
    weight_decay: float = 0.01
    """AdamW weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this 2-norm."""
    gradient_accumulation_steps: int = 1
    """Parts of a rank's batch whose gradients are accumulated into one update. More parts use less memory and make the
    same update."""
    ema_power: float = 0.75
    """At update n, counted from 0, the averaged weights, which act, keep the share 1 - (1 + n) ** -ema_power."""
    ema_max: float = 0.9999
    """Largest share that the averaged weights keep."""
    horizon: int = 64
    """Actions of a chunk."""
    exec_horizon: int = 16
    """Actions of a chunk that are executed before the policy samples the next chunk."""
    noise_steps: int = 1000
    """Diffusion steps in training."""
    sample_steps: int = 5
    """Steps of the sampler, DPM-Solver++."""
    drop_condition: float = 0.1
    """Probability with which training masks the state, each image, the instruction and the control frequency."""
    state_snr_db: float = 40.0
    """Signal-to-noise ratio of the noise that training adds to the state, in decibels; inf adds none."""
    augment: float = 0.5
    """Share of the cameras whose images training shifts and changes in colour; without effect on cached features."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of storing them: less memory, a third more time."""
    compile: bool = False
    """Compile the training step with torch.compile. Updates are faster after some minutes of compilation; a CPU needs
    a C++ compiler."""

    predict: ClassVar[str] = "sample"
    sampler: ClassVar[str] = "dpm"

    def __post_init__(self) -> None:
        at_least(self, gradient_accumulation_steps=1, lr_warmup_updates=0, sample_steps=1, exec_horizon=1)
        if self.exec_horizon > self.horizon:
            raise ConfigError(
                f"rdt.exec_horizon={self.exec_horizon} is more than the {self.horizon} actions of a chunk "
                f"(rdt.horizon). Write rdt.exec_horizon={self.horizon} or less."
            )
        if self.sample_steps > self.noise_steps:
            raise ConfigError(
                f"rdt.sample_steps={self.sample_steps} is more than the {self.noise_steps} diffusion steps "
                f"(rdt.noise_steps). Write rdt.sample_steps={self.noise_steps} or less."
            )
        if not 0 <= self.ema_max < 1:
            raise ConfigError(
                f"rdt.ema_max={self.ema_max:g} is not valid. Write a number of at least 0 and below 1, such as "
                "rdt.ema_max=0.9999; 0 means no averaging."
            )
        for name in ("drop_condition", "augment"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(
                    f"rdt.{name}={getattr(self, name):g} is not a probability. Write a number from 0 to 1."
                )


@dataclass(frozen=True)
class ImageEncoderConfig:
    """Sizes of the image encoder that is trained with the policy; a frozen encoder has its own sizes."""

    width: int = 128
    """Features per patch, a multiple of 64."""
    subsample: int = 1
    """2 averages 2 x 2 pixels of an image first, which is faster and coarser; 1 does not."""
    patch: int = 16
    """Side of a patch in pixels, 16 or 32. An image of 128 pixels has 64 or 16 patches."""

    def __post_init__(self) -> None:
        if self.width < 64 or self.width % 64:
            raise ConfigError(f"net.width={self.width} is not a multiple of 64. Write net.width=128.")
        if self.subsample not in (1, 2):
            raise ConfigError(f"net.subsample={self.subsample} is not supported. Write net.subsample=1 or 2.")
        if self.patch not in (16, 32):
            raise ConfigError(f"net.patch={self.patch} is not supported. Write net.patch=16 or 32.")


@dataclass(frozen=True)
class Evaluation:
    """Options of ``powerband eval`` for a run of libero."""

    benchmark: str = ""
    """Benchmark; empty is the benchmark of the run."""
    tasks: tuple[str, ...] = ()
    """Tasks by number, name or instruction; empty is the tasks of the run, or all tasks of another benchmark."""
    num_tasks: int = 0
    """Number of tasks to evaluate, from the first; 0 is all."""
    episodes: int = 20
    """Episodes of each task."""
    starts: Literal["published", "drawn"] = "published"
    """Initial states: LIBERO's published ones in order, or random ones by seed. Demonstrations start from random
    ones."""
    seeds: tuple[int, ...] = ()
    """Seeds of the episodes, instead of `starts`. Those in the field ``start`` of demonstrations repeat their initial
    states."""
    seed: int = 1_000
    """Seed of random initial states and of the policy's noise."""
    max_steps: int = 0
    """Largest number of actions of an episode; 0 is the setting of the run."""
    exec_horizon: int = 0
    """Actions of a chunk that are executed before the policy samples the next chunk; 0 is the setting of the run."""
    sample_steps: int = 0
    """Steps of the sampler; 0 is the setting of the run."""
    quality: Literal["", "coarse", "plain", "full"] = ""
    """Rendering quality of the frames; empty is the setting of the run."""
    instruction: str = ""
    """Instruction that the policy gets instead of each task's own instruction."""
    policies: tuple[Literal["policy", "random"], ...] = ("policy",)
    """Policies that act: the policy of the run, or random actions."""
    num_workers: int = -1
    """Simulators in parallel, each in its own process; -1 starts one per core."""
    record_video: bool = False
    """Record a video of the first episode of each task."""
    video_output_dir: str = ""
    """Folder of the videos; empty is ``videos`` in the run folder."""
    text_encoder: str = ""
    """Folder of the text encoder, if it has moved since training."""
    vision_encoder: str = ""
    """Folder of the vision encoder, if it has moved since training."""
    threads: int = 0
    """CPU threads of the policy; 0 leaves the number to torch."""

    def __post_init__(self) -> None:
        at_least(self, num_tasks=0, episodes=1, max_steps=0, exec_horizon=0, sample_steps=0, num_workers=-1, threads=0)
