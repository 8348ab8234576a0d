"""Data of libero: demonstrations, recorded or brought, decoded once and ready to learn from; written for others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.core.config import ConfigError
from powerband.core.run import Run
from powerband.data.features import FeatureCache
from powerband.data.frames import FrameCache
from powerband.data.robot_chunks import RobotChunks
from powerband.data.robot_episodes import RobotEpisodes, read_episodes
from powerband.data.statistics import Statistics
from powerband.nets.frozen_encoders import FrozenVision
from powerband.recipes.libero import Config
from powerband.recipes.libero_demos import demos_folder


@dataclass(frozen=True)
class Data:
    """Demonstrations, ready to learn from.

    Attributes:
        episodes: Where they come from.
        chunks: Makes batches.
        statistics: ``state`` and ``action``.
        vision: The frozen encoder whose features are learned from, None where pictures are.
    """

    episodes: RobotEpisodes
    chunks: RobotChunks
    statistics: dict[str, Statistics]
    vision: FrozenVision | None


def source_of(config: Config, run_dir: Path) -> Path:
    """Where the demonstrations are.

    Raises:
        ConfigError: Nowhere; how to get them.
    """
    path = Path(config.data) if config.data else demos_folder(config, run_dir)
    if not path.exists():
        raise ConfigError(
            f"{'data' if config.data else 'demos_dir'}={path}: there are no demonstrations. Record them with "
            f"`powerband train libero demos demos_dir=demos`, then write demos_dir=demos here too; or name your own: "
            f"data=FILE.hdf5, or a folder of LIBERO's files or of a LeRobotDataset."
        )
    return path


def task_set_of(config: Config, episodes: RobotEpisodes) -> str:
    """What statistics are called: of one task alone they are others than of its benchmark."""
    return config.benchmark if len(episodes.instructions) > 1 else "libero_single_task"


def data_of(config: Config, run: Run) -> Data:
    """Reads the demonstrations, and decodes their pictures once; a collective."""
    path, ranks = source_of(config, run.dir), run.ranks
    episodes = read_episodes(path, config.demo_episodes or None)
    cache = Path(config.cache_dir) if config.cache_dir else path.parent / f"{path.name}-cache"
    shared: Any = {"gather": ranks.gather, "rank": ranks.rank}
    frames = features = vision = None
    if config.use_pictures:
        frames = FrameCache.build(
            cache / "frames", episodes.cameras, episodes.rows, config.pixels, episodes.pictures(),
            episodes.fingerprint, **shared,
        )  # fmt: skip
        if config.vision_encoder:
            vision = FrozenVision(Path(config.vision_encoder), run.device)
            features = FeatureCache.build(cache / "features", frames, vision.name, vision, **shared)
    chunks = RobotChunks(episodes, frames, features, config.rdt.horizon, config.frames)
    return Data(episodes, chunks, chunks.statistics(task_set_of(config, episodes)), vision)


def export(config: Config, run: Run) -> None:
    """Writes the demonstrations as a LeRobotDataset v3, to ``lerobot`` in the run folder."""
    from powerband.data.lerobot_writer import write_lerobot

    episodes = read_episodes(source_of(config, run.dir), config.demo_episodes or None)
    run.console.note(f"LeRobotDataset v3: {write_lerobot(run.dir / 'lerobot', episodes)}")
