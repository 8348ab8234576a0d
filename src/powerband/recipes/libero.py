"""libero: a diffusion transformer (RDT) that is told in words what to do, on LIBERO's tasks, through Accelerate."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from powerband.algos.rdt import RDTConfig
from powerband.core.config import ConfigError, RunConfig
from powerband.core.flags import at_least
from powerband.core.precision import Precision
from powerband.core.run import Run
from powerband.data.types import EnvSpec
from powerband.envs.libero.tasks import LiberoTask, NotInstalled, benchmark_named, task_named, tasks_of
from powerband.envs.libero.view import Quality
from powerband.loops.offline import OfflineConfig
from powerband.nets.rdt_policy import PolicyConfig
from powerband.recipes.libero_words import RENAMED as RENAMED

describe = "LIBERO: a diffusion transformer (RDT) with language and cameras, from demonstrations, through Accelerate"


@dataclass(frozen=True)
class Config:
    benchmark: str = "libero_90"
    """Benchmark of `tasks`: libero_spatial, libero_object, libero_goal, libero_90 or libero_10."""
    tasks: tuple[str, ...] = ("close the top drawer of the cabinet",)
    """Tasks by number, name or instruction; empty is all of the benchmark."""
    data: str = ""
    """Demonstrations to learn from: a folder of recordings, a LIBERO HDF5 file or a folder of them, or a
    LeRobotDataset v3; empty is `demos_dir`."""
    demos_dir: str = ""
    """Where the stage `demos` records, a folder a task; empty is ``demos`` in the run folder."""
    demo_episodes: int = 50
    """Episodes of each task that `demos` records; of `data`, the first so many of each task are learned from."""
    demo_noise: float = 0.0
    """Deviation of what is added to the recorded actions as they are carried out: the way back is shown."""
    cache_dir: str = ""
    """Decoded frames and features of frozen encoders; empty is ``cache`` beside the demonstrations."""
    pixels: int = 128
    """Side of a frame, a multiple of net.patch."""
    quality: Quality = "coarse"
    """How frames are rendered, in demonstrations and evaluations: coarse simplifies meshes to what a frame can show,
    plain leaves them, full adds shadows, reflections and multisampling, as the package does."""
    frames: int = 2
    """Newest frames of each camera that are seen together."""
    use_pictures: bool = True
    """See the cameras; else the state of the robot and the instruction alone."""
    size: Literal["rdt-tiny", "rdt-170m", "rdt-1b"] = "rdt-tiny"
    """Width, depth and heads of the transformer."""
    text_encoder: str = ""
    """Folder of a T5 encoder; empty is a built-in one that gives every word a vector of its own."""
    vision_encoder: str = ""
    """Folder of a SigLIP vision encoder, frozen, its features cached; empty is a small one that is trained too."""
    pretrained: str = ""
    """Folder of a published RDT checkpoint to begin with."""
    max_steps: int = 300
    """Actions of an episode in the simulator at most."""
    num_workers: int = -1
    """Simulators side by side while demonstrations are recorded, a process each; -1 is one a core."""
    updates: int = 20_000
    """Updates; where run.env_steps is given, it is the budget instead."""
    sample_batch_size: int = 32
    """Rows whose chunks are drawn at an evaluation (eval_interval), to log their error."""
    eval_episodes: int = 0
    """Episodes of each task in the simulator at an evaluation during training; 0 is none."""
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=0))
    offline: OfflineConfig = field(default_factory=lambda: OfflineConfig(global_batch_size=32))
    rdt: RDTConfig = field(default_factory=RDTConfig)
    net: PolicyConfig = field(default_factory=PolicyConfig)

    def __post_init__(self) -> None:
        at_least(self, demo_episodes=0, demo_noise=0, frames=1, max_steps=1, num_workers=-1)
        at_least(self, updates=1, sample_batch_size=1, eval_episodes=0)

    def chosen(self) -> tuple[LiberoTask, ...]:
        """The tasks of `tasks`."""
        if not self.tasks:
            return tasks_of(self.benchmark)
        return tuple(task_named(self.benchmark, word) for word in self.tasks)

    def rows(self) -> int:
        """Simulators side by side."""
        from powerband.core.device import cores

        return cores() if self.num_workers < 0 else max(1, self.num_workers)

    def rank_rows(self, world_size: int) -> int:
        """Rows of one update on each rank: its batch, times what is accumulated where the batch is per rank."""
        own = self.offline.batch_size_per_rank
        return own * self.rdt.accumulation if own else self.offline.batch(world_size)


def settle(config: Config, stage: str) -> Config:
    """The same with its benchmark by the published name, a budget in rows, and the precision of `accelerate launch`."""
    from powerband.core import launch

    config = replace(config, benchmark=benchmark_named(config.benchmark))
    if precision := launched_precision(config):
        config = replace(config, run=replace(config.run, precision=precision))
    if config.run.env_steps:
        return config
    world = launch.world_size(config.run)
    return replace(config, run=replace(config.run, env_steps=config.updates * config.rank_rows(world) * world))


def launched_precision(config: Config) -> str:
    """What `accelerate launch --mixed_precision` asked for, where powerband's own word is left as it is and no run goes
    on with what it has; else ""."""
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    taken = config.run.precision in ("fp32", "auto") and not config.run.resume
    return asked if taken and asked in ("bf16", "fp16") else ""


def notices(config: Config) -> list[str]:
    """What the user should be told about a configuration that is not settled yet."""
    precision = launched_precision(config)
    return [f"precision={precision}, as accelerate launch was told."] if precision else []


def check(config: Config, world_size: int) -> None:
    """Refuses what does not divide and tasks that there are not, before any rank is started."""
    with contextlib.suppress(NotInstalled):  # learning needs no LIBERO
        config.chosen()
    rows = config.rank_rows(world_size)
    if rows % config.rdt.accumulation:
        raise ConfigError(
            f"rdt.accumulation={config.rdt.accumulation} does not divide the {rows} rows of an update on each rank. "
            f"Write rdt.accumulation=1, or a batch that it divides."
        )
    if config.pixels % config.net.patch or config.pixels < 32:
        raise ConfigError(
            f"pixels={config.pixels}: give a multiple of the {config.net.patch} pixels of a patch, from 32 on."
        )
    config.offline.refuse_device("chunks are read from frames that are mapped from files")


def train(config: Config, run: Run) -> None:
    """Trains on demonstrations, recorded or brought."""
    from powerband.recipes import libero_learn

    libero_learn.train(config, run)


def demos(config: Config, run: Run) -> None:
    """Records scripted demonstrators in the simulator."""
    from powerband.recipes import libero_demos

    libero_demos.demos(config, run)


def export(config: Config, run: Run) -> None:
    """Writes the demonstrations as a LeRobotDataset v3, to ``lerobot`` in the run folder."""
    from powerband.recipes import libero_data

    libero_data.export(config, run)


def networks(config: Config, device: Any, precision: Precision) -> tuple[Any, EnvSpec, Any]:
    """A new learner of `config`, what it sees, and its loop's sizes; `doctor` times it."""
    from powerband.recipes import libero_learn

    return libero_learn.networks(config, device, precision)


def evaluate(config: Config, folder: Path, options: Any) -> list[dict]:
    """Success on tasks in the simulator, with intervals; a table, films."""
    from powerband.recipes import libero_learn, libero_score

    return libero_score.evaluate_run(config, folder, options, libero_learn.for_evaluation)


def __getattr__(name: str) -> Any:
    if name == "Evaluation":
        from powerband.recipes.libero_score import Evaluation

        return Evaluation
    raise AttributeError(name)


STAGES = {"train": train, "demos": demos, "export": export}
DEFAULT_STAGE = "train"
VARIANTS = {
    "tiny": {
        "run.precision": "auto",
        "offline.global_batch_size": 32,
        "updates": 2_000,
        "rdt.lr": 5e-4,
        "rdt.warmup": 100,
        "rdt.horizon": 16,
        "rdt.execute": 8,
        "net.subsample": 2,
        "net.patch": 32,
    },
    "smoke": {
        "max_steps": 40,
        "demo_episodes": 1,
        "pixels": 32,
        "offline.global_batch_size": 4,
        "updates": 3,
        "sample_batch_size": 2,
        "rdt.horizon": 4,
        "rdt.execute": 2,
        "rdt.noise_steps": 20,
        "rdt.sample_steps": 2,
    },
}
