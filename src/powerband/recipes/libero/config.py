"""Defines the options of the recipe libero, its variants and its old option names. This file does not import torch.

A variant is a named set of option values. An old name is a former name of an option, or its name in the RDT guide that
docs/recipes/libero.md discusses.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, cast

from powerband.core.config import RunConfig
from powerband.core.config.ranges import FilePath, Frames, NoiseScale, Range, Size, SizeOrZero, Workers, check_ranges
from powerband.core.config.schema import not_default, value_text
from powerband.core.errors import ConfigError
from powerband.core.ranks import launch
from powerband.loops.config import OfflineConfig
from powerband.recipes.libero.env.tasks import (
    LiberoNotInstalled,
    LiberoTask,
    benchmark_tasks,
    find_benchmark,
    find_task,
)
from powerband.recipes.libero.settings import ImageEncoderConfig, Quality, RDTConfig, StatisticsKind

WITHOUT_EFFECT = (
    ("objective", "regression", ("noise_steps", "sample_steps")),
    ("optimizer", "factored", ("betas", "eps")),
)
"""Option of the policy, its value, and the options of the policy that then have no effect."""


@dataclass(frozen=True)
@check_ranges
class Config:
    benchmark: str = "libero_90"
    """Benchmark of `tasks`: libero_spatial, libero_object, libero_goal, libero_90 or libero_10."""
    tasks: tuple[str, ...] = ("close the top drawer of the cabinet",)
    """Tasks that `demos` records and that evaluations play, by number, name or instruction; empty is all tasks of the
    benchmark. Training learns all tasks of the demonstrations."""
    data: FilePath = ""
    """Demonstrations to learn from: a folder of recordings, a LIBERO HDF5 file or a folder of them, or a
    LeRobotDataset v3; empty is `demos_dir`."""
    demos_dir: FilePath = ""
    """Folder in which the stage `demos` records, one sub-folder per task; empty is ``demos`` in the run folder."""
    demo_episodes: SizeOrZero = 50
    """Episodes of each task that `demos` records, and the largest number of episodes per task that training reads from
    `data`; 0 reads all."""
    demo_noise: NoiseScale = 0.0
    """Standard deviation of the noise on executed actions while `demos` records. The recorded actions have no noise, so
    they show how to recover from errors."""
    record_missing: bool = False
    """Record demonstrations before training, as the stage `demos` does, for those of `tasks` that `demos_dir` lacks. It
    has no effect with `data`, nor if `demos_dir` has demonstrations of other tasks only."""
    project: FilePath = "runs/libero"
    """Folder of the stage pipeline: demonstrations and the runs of its stages."""
    cache_dir: FilePath = ""
    """Folder of decoded frames and of features of frozen encoders; empty is ``NAME-cache`` next to the demonstrations
    in NAME."""
    pixels: Annotated[int, Range(at_least=32, at_most=4096)] = 128
    """Side of a frame in pixels, a multiple of net.patch."""
    quality: Quality = "coarse"
    """Rendering quality of frames, in demonstrations and evaluations. coarse simplifies meshes to the detail that a
    frame can show, plain keeps them, and full adds shadows, reflections and multisampling, as LIBERO does."""
    frames: Frames = 2
    """Newest frames of each camera in an observation."""
    use_images: bool = True
    """Observe the camera images; false observes the state of the robot and the instruction only."""
    size: Literal["rdt-tiny", "rdt-170m", "rdt-1b"] = "rdt-tiny"
    """Width, depth and heads of the transformer."""
    text_encoder: FilePath = ""
    """Folder of a T5 encoder; empty is a built-in encoder that gives every word a fixed vector."""
    vision_encoder: FilePath = ""
    """Folder of a frozen SigLIP vision encoder, whose features are cached; empty is a small encoder that is trained
    with the policy."""
    pretrained: FilePath = ""
    """Folder of a published RDT checkpoint that training starts from."""
    statistics: StatisticsKind = "zscore"
    """Units of states and actions that the policy sees: zscore divides by the standard deviation, quantile maps 1 % and
    99 % to -1 and 1, none keeps recorded units, as the published RDT weights were trained."""
    max_steps: Annotated[int, Range(at_least=1, at_most=100000)] = 300
    """Largest number of actions of an episode in the simulator."""
    num_workers: Workers = -1
    """Simulators in parallel while demonstrations are recorded, each in its own process; -1 starts one per core."""
    updates: SizeOrZero = 20_000
    """Updates of the run; run.env_steps, if it is given, is the budget instead. With resume, the updates in total; 0
    uses run.env_steps."""
    save_updates: SizeOrZero = 0
    """Updates between two checkpoints, instead of run.save_interval, which counts rows; 0 uses run.save_interval."""
    sample_batch_size: Size = 32
    """Rows for which an evaluation during training samples chunks, to log their error."""
    eval_episodes: SizeOrZero = 0
    """Episodes of each task that an evaluation during training plays in the simulator, from random initial states; 0
    plays none."""
    final_episodes: Size = 20
    """Episodes of each task that ``powerband eval`` plays unless it gets another number."""
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=0))
    offline: OfflineConfig = field(default_factory=lambda: OfflineConfig(global_batch_size=32))
    rdt: RDTConfig = field(default_factory=RDTConfig)
    net: ImageEncoderConfig = field(default_factory=ImageEncoderConfig)

    def selected_tasks(self) -> tuple[LiberoTask, ...]:
        """Returns the tasks that `tasks` names.

        Raises:
            ConfigError: A task is unknown.
            LiberoNotInstalled: LIBERO is not installed.
        """
        if not self.tasks:
            return benchmark_tasks(self.benchmark)
        return tuple(find_task(self.benchmark, task) for task in self.tasks)

    def rows_per_rank_update(self, world_size: int) -> int:
        """Returns the number of rows (training samples) of one update on each of `world_size` ranks.

        With ``offline.batch_size_per_rank``, which is the size of one part of gradient accumulation, the result is this
        size times the number of parts. Otherwise it is the rank's part of ``offline.global_batch_size``.
        """
        per_rank = self.offline.batch_size_per_rank
        return per_rank * self.rdt.gradient_accumulation_steps if per_rank else self.offline.batch(world_size)


def finalize(config: Config, stage: str) -> Config:
    """Returns a copy of the configuration with the values that depend on other options or on the launcher.

    These values are the full name of the benchmark, the length of the run `run.env_steps` and the interval between
    checkpoints `run.save_interval` in rows (training samples), and the precision of ``accelerate launch``.

    Args:
        config: Configuration as the user wrote it.
        stage: Name of the stage.

    Raises:
        ConfigError: Both `save_updates` and `run.save_interval` are set for a new run, the run has no budget, or the
            stage pipeline has one in steps.
    """
    config = replace(config, benchmark=find_benchmark(config.benchmark))
    if precision := launched_precision(config):
        config = replace(config, run=replace(config.run, precision=precision))
    run, world_size = config.run, launch.world_size(config.run)
    if config.save_updates and run.save_interval and not run.resume:  # with resume, the interval is the saved one
        raise ConfigError(
            f"save_updates={config.save_updates} and run.save_interval={run.save_interval} are two intervals "
            f"between checkpoints. Write only one of them."
        )
    if stage == "pipeline":  # its stages finalize their own configurations
        return _finalize_pipeline(config)
    rows = config.rows_per_rank_update(world_size) * world_size
    if config.save_updates:
        run = replace(run, save_interval=config.save_updates * rows)
    given = 0 if config.updates and run.resume else run.env_steps  # a saved configuration has updates=0
    if not given and not config.updates:
        raise ConfigError("updates=0 and run.env_steps=0 leave the run without a budget. Write updates=20000.")
    run = replace(run, env_steps=given or config.updates * rows)
    return replace(config, run=run, updates=0, save_updates=0)


def _finalize_pipeline(config: Config) -> Config:
    """Returns the configuration of the stage pipeline, whose own run has one step."""
    if config.run.env_steps > 1:  # a saved configuration has 1
        raise ConfigError(
            f"run.env_steps={config.run.env_steps} is not supported in the stage pipeline, which has no steps of its "
            f"own. Write updates=N for the updates of its stage train."
        )
    if not config.updates:
        raise ConfigError("updates=0 leaves the stage train without a budget. Write updates=20000.")
    return replace(config, run=replace(config.run, env_steps=1))


def launched_precision(config: Config) -> Literal["", "bf16", "fp16"]:
    """Returns the value of ``accelerate launch --mixed_precision`` if it applies to this run, else "".

    The value does not apply to a run that is resumed, nor if ``run.precision`` is bf16 or fp16.
    """
    if config.run.precision not in ("fp32", "auto") or config.run.resume:
        return ""
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision == "bf16" or precision == "fp16":
        return cast(Literal["bf16", "fp16"], precision)
    return ""


def notices(config: Config) -> list[str]:
    """Returns messages about a precision that ``accelerate launch`` sets, and about options that have no effect."""
    precision = launched_precision(config)
    found = [f"precision={precision}: the value of accelerate launch --mixed_precision."] if precision else []
    for option, value, unused_options in WITHOUT_EFFECT:
        names = (f"rdt.{name}" for name in unused_options)
        unused = ", ".join(f"{name}={value_text(each)}" for name, each in not_default(config, names).items())
        if getattr(config.rdt, option) == value and unused:
            found.append(f"{unused}: no effect with rdt.{option}={value}.")
    return found


def check(config: Config, world_size: int) -> None:
    """Checks, before any rank starts, that batch and image sizes are divisible and that the tasks exist.

    Args:
        config: A finalized configuration.
        world_size: Number of ranks, the processes of the run.

    Raises:
        ConfigError: A size or a task is invalid.
    """
    with contextlib.suppress(LiberoNotInstalled):  # learning does not need LIBERO
        config.selected_tasks()
    rows, parts = config.rows_per_rank_update(world_size), config.rdt.gradient_accumulation_steps
    if rows % parts:
        raise ConfigError(
            f"rdt.gradient_accumulation_steps={parts} does not divide the {rows} rows of an update on each rank. "
            f"Write rdt.gradient_accumulation_steps=1, or an offline.global_batch_size that gives each rank a multiple "
            f"of {parts} rows."
        )
    if config.pixels % config.net.patch:
        raise ConfigError(
            f"pixels={config.pixels} is not valid. Write a multiple of the {config.net.patch} pixels of a patch "
            f"(net.patch)."
        )
    if config.rdt.keyframe_coef and config.use_images and config.vision_encoder:
        raise ConfigError(
            f"rdt.keyframe_coef={config.rdt.keyframe_coef:g} trains the image encoder to locate objects, but that of "
            f"vision_encoder={config.vision_encoder} is frozen. Write rdt.keyframe_coef=0, or leave vision_encoder out."
        )
    config.offline.refuse_device("chunks are read from frames in memory-mapped files")


TINY: dict[str, Any] = {
    "run.precision": "auto",
    "offline.global_batch_size": 32,
    "updates": 2_000,
    "rdt.lr": 5e-4,
    "rdt.lr_warmup_updates": 100,
    "rdt.horizon": 16,
    "rdt.exec_horizon": 4,
    "net.subsample": 2,
    "net.patch": 32,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": TINY,
    "keyframe": {**TINY, "frames": 1, "updates": 10_000, "rdt.keyframe_coef": 0.5},  # one policy of many tasks
    "smoke": {
        "max_steps": 120,  # the script needs about 75
        "quality": "plain",  # compiling and simplifying takes longer than some hundred slow frames
        "record_missing": True,
        "final_episodes": 2,
        "demo_episodes": 1,
        "pixels": 32,
        "offline.global_batch_size": 4,
        "updates": 3,
        "sample_batch_size": 2,
        "rdt.horizon": 4,
        "rdt.exec_horizon": 2,
        "rdt.noise_steps": 20,
        "rdt.sample_steps": 2,
    },
}
OLD_NAMES: dict[str, Any] = {
    "train_batch_size": (
        "offline.batch_size_per_rank",
        "rows of one batch on each rank, as in the code of the RDT guide; the text of the guide calls it the total",
    ),
    "dataloader_num_workers": ("offline.loader_threads", "threads, not processes; 0 if the rows are in memory"),
    "mixed_precision": "run.precision",
    "checkpointing_period": "save_updates",
    "checkpoints_total_limit": "run.keep_checkpoints",
    "pretrained_model_name_or_path": "pretrained",
    "pretrained_text_encoder_name_or_path": "text_encoder",
    "pretrained_vision_encoder_name_or_path": "vision_encoder",
    "output_dir": ("run.run_dir", "one folder per run; nothing in it is overwritten"),
    "max_train_steps": ("updates", "updates of all ranks together"),
    "learning_rate": "rdt.lr",
    "lr_warmup_steps": "rdt.lr_warmup_updates",
    "resume_from_checkpoint": ("run.resume", "a run folder, a checkpoint, or last"),
    "cond_mask_prob": "rdt.drop_condition",
    "state_noise_snr": "rdt.state_snr_db",
    "dataset_type": (None, "Name the data: data=FILE.hdf5, a LeRobot folder, or demos_dir with recordings."),
    "multi_gpu": ("", "several ranks use one GPU each if there are GPUs; gpus=0,1 names them"),
    "num_processes": ("run.nproc", "ranks on this machine, one GPU each if there are GPUs"),
    "use_pictures": "use_images",
    "warmup": "rdt.lr_warmup_updates",
    "rdt.warmup": "rdt.lr_warmup_updates",
    "execute": "rdt.exec_horizon",
    "rdt.execute": "rdt.exec_horizon",
    "accumulation": "rdt.gradient_accumulation_steps",
    "rdt.accumulation": "rdt.gradient_accumulation_steps",
    "ema_most": "rdt.ema_max",
    "rdt.ema_most": "rdt.ema_max",
    "checkpoint_activations": "rdt.gradient_checkpointing",
    "rdt.checkpoint_activations": "rdt.gradient_checkpointing",
}
