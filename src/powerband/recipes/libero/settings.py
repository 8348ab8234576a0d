"""Defines settings of libero: learner, trained image encoder, rendering and evaluation. It does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from powerband.core.config.ranges import (
    MAX_WIDTH,
    ChunkLength,
    Coefficient,
    DiffusionSteps,
    FilePath,
    LearningRate,
    Positive,
    Range,
    Seed,
    Share,
    ShareBelowOne,
    Size,
    SizeOrZero,
    Threads,
    WeightDecay,
    Workers,
    check_ranges,
)
from powerband.core.errors import ConfigError

StatisticsKind = Literal["zscore", "quantile", "none"]
"""Units of states and actions; see the option ``statistics``."""
Quality = Literal["coarse", "plain", "full"]
"""Rendering quality of a frame; see the option ``quality``."""


@dataclass(frozen=True)
@check_ranges
class RDTConfig:
    """Settings of the RDT learner."""

    lr: LearningRate = 1e-4
    """AdamW learning rate, constant after the warm-up."""
    lr_warmup_updates: SizeOrZero = 500
    """Updates in which the learning rate rises from 0."""
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    eps: Annotated[float, Range(above=0, at_most=1)] = 1e-8
    """Constant that AdamW adds to the root of the second moment."""
    weight_decay: WeightDecay = 0.01
    """AdamW weight decay."""
    optimizer: Literal["adamw", "factored"] = "adamw"
    """Optimiser. factored stores a row and a column in place of each matrix of second moments, and no first moments
    (Adafactor with the learning rate rdt.lr): far less memory. rdt.betas and rdt.eps then have no effect."""
    freeze: tuple[str, ...] = ()
    """Patterns of the names of weights that do not change, such as 'vision.*' or 'model.blocks.1?.*'; * stands for any
    text."""
    max_grad_norm: Positive = 1.0
    """Gradients are clipped to this 2-norm."""
    gradient_accumulation_steps: Size = 1
    """Parts of a rank's batch whose gradients are accumulated into one update. More parts use less memory and make the
    same update."""
    ema_power: Share = 0.75
    """At update n, counted from 0, the averaged weights, which act, keep the share 1 - (1 + n) ** -ema_power."""
    ema_max: ShareBelowOne = 0.9999
    """Largest share that the averaged weights keep; 0 does not average."""
    horizon: ChunkLength = 64
    """Actions of a chunk."""
    exec_horizon: ChunkLength = 16
    """Actions of a chunk that are executed before the policy samples the next chunk."""
    objective: Literal["diffusion", "regression"] = "diffusion"
    """What the network learns: diffusion removes noise from a chunk and samples chunks in several steps; regression
    predicts the mean chunk in one step, which is behaviour cloning with a squared error."""
    noise_steps: DiffusionSteps = 1000
    """Diffusion steps in training; without effect with rdt.objective=regression."""
    sample_steps: DiffusionSteps = 5
    """Steps of the sampler, DPM-Solver++; without effect with rdt.objective=regression."""
    drop_condition: Share = 0.1
    """Probability with which training masks the state, each image, the instruction and the control frequency."""
    state_snr_db: Annotated[float, Range(at_least=-100, at_most=1000, infinite=True)] = 40.0
    """Signal-to-noise ratio of the noise that training adds to the state, in decibels; inf adds none."""
    augment: Share = 0.5
    """Share of the cameras whose images training shifts and changes in colour; without effect on cached features."""
    keyframe_coef: Coefficient = 0.0
    """Weight of the loss of a second prediction: the position of the end effector when the gripper next opens or
    closes (a keyframe). It trains the image encoder to locate objects, and the policy observes the predicted position.
    0 does not predict it."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of storing them: less memory, a third more time."""
    compile: bool = False
    """Compile the blocks of the transformer with torch.compile, in about 20 seconds. On a GPU, updates of rdt-1b take
    half the time and half the memory of activations. A CPU needs a C++ compiler; with AVX-512, updates of rdt-tiny take
    three quarters of the time."""

    predict: ClassVar[str] = "sample"
    sampler: ClassVar[str] = "dpm"

    def __post_init__(self) -> None:
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


@dataclass(frozen=True)
@check_ranges
class ImageEncoderConfig:
    """Sizes of the image encoder that is trained with the policy; a frozen encoder has its own sizes."""

    width: Annotated[int, Range(at_least=64, at_most=MAX_WIDTH)] = 128
    """Features per patch, a multiple of 64."""
    subsample: Annotated[int, Range(at_least=1, at_most=2)] = 1
    """2 averages 2 x 2 pixels of an image first, which is faster and coarser; 1 does not."""
    patch: Annotated[int, Range(at_least=16, at_most=32)] = 16
    """Side of a patch in pixels, 16 or 32. An image of 128 pixels has 64 or 16 patches."""

    def __post_init__(self) -> None:
        if self.width % 64:
            raise ConfigError(f"net.width={self.width} is not a multiple of 64. Write net.width=128.")
        if self.patch not in (16, 32):
            raise ConfigError(f"net.patch={self.patch} is not supported. Write net.patch=16 or 32.")


OLD_EVALUATION_NAMES = {"num_workers": "workers", "record_video": "video"}


@dataclass(frozen=True)
@check_ranges
class Evaluation:
    """Options of ``powerband eval`` for a run of libero."""

    benchmark: str = ""
    """Benchmark; empty is the benchmark of the run."""
    tasks: tuple[str, ...] = ()
    """Tasks by number, name or instruction; empty is the tasks of the run, or all tasks of another benchmark."""
    num_tasks: Annotated[int, Range(at_least=0, at_most=100_000)] = 0
    """Number of tasks to evaluate, from the first; 0 is all."""
    episodes: SizeOrZero = 0
    """Episodes of each task; 0 is one for each of `seeds`, or without them the run's setting final_episodes (20)."""
    starts: Literal["published", "drawn"] = "published"
    """Initial states: LIBERO's published ones in order, or random ones by seed. Demonstrations start from random
    ones."""
    seeds: tuple[Seed, ...] = ()
    """Seeds of the episodes, instead of `starts`. Those in the field ``start`` of demonstrations repeat their initial
    states."""
    seed: Seed = 1_000
    """Seed of random initial states and of the policy's noise."""
    max_steps: Annotated[int, Range(at_least=0, at_most=100_000)] = 0
    """Largest number of actions of an episode; 0 is the setting of the run."""
    exec_horizon: Annotated[int, Range(at_least=0, at_most=100_000)] = 0
    """Actions of a chunk that are executed before the policy samples the next chunk; 0 is the setting of the run."""
    sample_steps: Annotated[int, Range(at_least=0, at_most=100_000)] = 0
    """Steps of the sampler; 0 is the setting of the run."""
    quality: Literal["", "coarse", "plain", "full"] = ""
    """Rendering quality of the frames; empty is the setting of the run."""
    instruction: str = ""
    """Instruction that the policy gets instead of each task's own instruction."""
    policies: tuple[Literal["policy", "random"], ...] = ("policy",)
    """Policies that act: the policy of the run, or random actions."""
    workers: Workers = -1
    """Simulators in parallel, each in its own process; -1 starts one per core."""
    video: bool = True
    """Record a video of one episode of each task."""
    gpus: str = "none"
    """Device of the policy: none for the CPU, or the index of one GPU, such as 0."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the networks."""
    video_output_dir: FilePath = ""
    """Folder of the videos; empty is ``videos`` in the run folder."""
    text_encoder: FilePath = ""
    """Folder of the text encoder, if it has moved since training."""
    vision_encoder: FilePath = ""
    """Folder of the vision encoder, if it has moved since training."""
    threads: Threads = 0
    """CPU threads of the policy; 0 leaves the number to torch."""
