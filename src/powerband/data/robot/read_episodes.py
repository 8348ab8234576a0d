"""read_episodes: reads demonstrations in any of the supported formats."""

from __future__ import annotations

from pathlib import Path

from powerband.data.robot.episodes import RobotEpisodes
from powerband.data.robot.hdf5 import read_libero_hdf5
from powerband.data.robot.lerobot import read_lerobot
from powerband.data.robot.recordings import read_recordings


def read_episodes(path: Path, limit: int | None = None) -> RobotEpisodes:
    """Reads demonstrations of a robot arm: HDF5 of LIBERO or robomimic, a LeRobotDataset v3, or own recordings.

    Args:
        path: File or folder; its content decides the format.
        limit: Largest number of episodes per task, from the first; None reads all.

    Raises:
        ConfigError: The format is unknown, or the data cannot be read.
    """
    if path.suffix in (".hdf5", ".h5") or (path.is_dir() and any(path.glob("*.hdf5"))):
        return read_libero_hdf5(path, limit)
    if (path / "meta" / "info.json").exists():
        return read_lerobot(path, limit)
    return read_recordings(path, limit)
