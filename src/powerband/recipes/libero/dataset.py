"""Loads demonstrations of libero as training data: decodes images once, computes statistics, exports LeRobot data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from powerband.core.errors import ConfigError
from powerband.core.ranks.ranks import refuse_several
from powerband.core.run.run import Run
from powerband.data.robot.chunks import RobotChunks
from powerband.data.robot.encoder_features import FeatureCache
from powerband.data.robot.episodes import RobotEpisodes
from powerband.data.robot.frames import FrameCache
from powerband.data.robot.lerobot_writer import write_lerobot
from powerband.data.robot.read_episodes import read_episodes
from powerband.data.robot.statistics import Statistics
from powerband.recipes.libero.config import Config
from powerband.recipes.libero.demos import demos_folder
from powerband.recipes.libero.nets.frozen_encoders import FrozenImageEncoder


@dataclass(frozen=True)
class DemonstrationData:
    """Demonstrations in the form that the learner uses.

    Attributes:
        episodes: Recorded episodes.
        chunks: Creates batches of action chunks (consecutive actions) with their observations.
        statistics: Name -> statistics for normalisation; the names are ``state`` and ``action``.
        vision: Frozen image encoder whose cached features are in the batches. None if the batches have raw images or no
            images at all.
    """

    episodes: RobotEpisodes
    chunks: RobotChunks
    statistics: dict[str, Statistics]
    vision: FrozenImageEncoder | None


def demonstrations_path(config: Config, run_dir: Path) -> Path:
    """Returns the path of the demonstrations: the option ``data`` or, if it is empty, the folder of the stage demos.

    Raises:
        ConfigError: The path does not exist.
    """
    path = Path(config.data) if config.data else demos_folder(config, run_dir)
    if not path.exists():
        raise ConfigError(
            f"{'data' if config.data else 'demos_dir'}={path} does not exist. Record demonstrations with "
            f"`powerband train libero demos demos_dir=demos`, then write demos_dir=demos here too; or name "
            f"existing demonstrations: data=FILE.hdf5, or data=FOLDER with LIBERO's HDF5 files or a LeRobotDataset."
        )
    return path


def task_set_name(config: Config, episodes: RobotEpisodes) -> str:
    """Returns the name of the task set that the normalisation statistics describe.

    The name is that of the benchmark, or ``libero_single_task`` if all episodes are of one task.
    """
    return config.benchmark if len(episodes.instructions) > 1 else "libero_single_task"


def load_demonstration_data(config: Config, run: Run) -> DemonstrationData:
    """Reads the demonstrations, and caches their decoded frames and the features of a frozen image encoder on disk.

    All ranks (processes of the run) must call it together.
    """
    path, ranks = demonstrations_path(config, run.dir), run.ranks
    episodes = read_episodes(path, config.demo_episodes or None)
    cache_dir = Path(config.cache_dir) if config.cache_dir else path.parent / f"{path.name}-cache"
    frames = features = vision = None
    if config.use_images:
        frames = FrameCache.build(
            cache_dir / "frames",
            episodes.cameras,
            episodes.rows,
            config.pixels,
            episodes.images(),
            episodes.fingerprint,
            gather=ranks.gather,
            rank=ranks.rank,
        )
        if config.vision_encoder:
            vision = FrozenImageEncoder(Path(config.vision_encoder), run.device)
            features = FeatureCache.build(
                cache_dir / "features", frames, vision.name, vision, gather=ranks.gather, rank=ranks.rank
            )
    chunks = RobotChunks(episodes, frames, features, config.rdt.horizon, config.frames)
    return DemonstrationData(episodes, chunks, chunks.statistics(task_set_name(config, episodes)), vision)


def export(config: Config, run: Run) -> None:
    """Stage export: writes the demonstrations as a LeRobotDataset v3 to ``lerobot`` in the run folder."""
    refuse_several(run.ranks, "export")
    episodes = read_episodes(demonstrations_path(config, run.dir), config.demo_episodes or None)
    run.console.note(f"wrote a LeRobotDataset v3 to {write_lerobot(run.dir / 'lerobot', episodes)}")
