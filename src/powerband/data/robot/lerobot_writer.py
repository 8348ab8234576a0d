"""write_lerobot: writes `RobotEpisodes` as a LeRobotDataset v3, which LeRobot and `read_lerobot` read.

Source: the LeRobot documentation, "LeRobotDataset v3.0"; for details that it omits, published datasets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from powerband.core.errors import ConfigError
from powerband.core.telemetry.console import count_progress_bar
from powerband.data.robot.episodes import RobotEpisodes
from powerband.data.robot.frames import atomic_folder
from powerband.data.robot.lerobot import ACTION, IMAGE_KEYS, JOINT_NAMES, POSE_NAMES, STATE
from powerband.data.robot.lerobot_videos import (
    CHUNK_FILE_PATH,
    FILES_PER_CHUNK,
    MAX_VIDEO_MB,
    VIDEO_PATH,
    FilePosition,
    VideoWriter,
)

ACTION_NAMES = ("delta_x", "delta_y", "delta_z", "rotation_x", "rotation_y", "rotation_z", "gripper")
DATA_MB = 100
"""Largest size of a parquet file in megabytes."""
QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
DATA_PATH = f"data/{CHUNK_FILE_PATH}.parquet"
EPISODES_PATH = f"meta/episodes/{CHUNK_FILE_PATH}.parquet".format(chunk_index=0, file_index=0)


def write_lerobot(folder: Path, episodes: RobotEpisodes, robot_type: str = "panda") -> Path:
    """Writes episodes as a LeRobotDataset v3; a dataset in `folder` is replaced.

    Numbers are stored exactly, and images are compressed (H.264). Tasks with the same instruction become one task.

    Args:
        folder: Folder of the dataset.
        episodes: Episodes to write; the sides of their images must be even.
        robot_type: Robot type in the dataset's metadata.

    Returns:
        The folder.

    Raises:
        ConfigError: pyarrow or av is not installed, or a side of the images is odd.
        ShardError: The disk is full, the folder cannot be written, or it has other content.
    """
    try:
        import av  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError:
        raise ConfigError("A LeRobotDataset needs pyarrow and av. Run pip install 'powerband[libero]'.") from None
    fps = int(episodes.hz) if float(episodes.hz).is_integer() else float(episodes.hz)
    tasks = list(dict.fromkeys(episodes.instructions))
    columns = _columns_of(episodes, [tasks.index(text) for text in episodes.instructions], fps)
    bounds = np.flatnonzero(np.diff(columns["episode_index"], prepend=-1, append=-1)).tolist()
    spans = list(zip(bounds, bounds[1:], strict=False))
    with atomic_folder(folder, "meta/info.json") as partial:
        table: dict[str, list[Any]] = {"episode_index": list(range(len(spans)))}
        table["tasks"] = [[tasks[columns["task_index"][first]]] for first, _ in spans]
        table["length"] = [last - first for first, last in spans]
        table |= _write_data(partial, columns, spans)
        table |= {"dataset_from_index": [first for first, _ in spans], "dataset_to_index": [last for _, last in spans]}
        videos, statistics = _write_videos(partial, episodes, spans, fps)
        for video in videos:
            table |= {
                f"videos/{video.key}/{name}": [each[name] for each in video.episodes] for name in video.episodes[0]
            }
        for key, values in columns.items():
            statistics[key] = [_statistics(values[first:last]) for first, last in spans] + [_statistics(values)]
        for key, rows in statistics.items():
            table |= {f"stats/{key}/{name}": [row[name] for row in rows[:-1]] for name in rows[0]}
        table |= {f"meta/episodes/{name}": [0] * len(spans) for name in ("chunk_index", "file_index")}
        _write_table(partial / EPISODES_PATH, table)
        _write_tasks(partial / "meta" / "tasks.parquet", tasks)
        info = _info(episodes, columns, videos, fps, robot_type, len(tasks), len(spans))
        _write_json(partial / "meta" / "info.json", info)
        _write_json(partial / "meta" / "stats.json", {key: rows[-1] for key, rows in statistics.items()})
    return folder


def _columns_of(episodes: RobotEpisodes, task_of: Sequence[int], fps: float) -> dict[str, np.ndarray]:
    """Returns the columns of the parquet files by name, arrays with one row per step.

    `task_of` is the written task index of each task of `episodes`.
    """
    pose = [episodes.gripper.unsqueeze(1), episodes.eef_pos, episodes.eef_quat]
    state = ([episodes.joints] if 0 in episodes.slots else []) + pose
    episode = episodes.episode.numpy()
    index = np.arange(episodes.rows)
    frame = index - np.searchsorted(episode, episode)
    return {
        STATE: np.concatenate([part.numpy() for part in state], 1),
        ACTION: episodes.action.numpy(),
        "timestamp": (frame / fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": episode,
        "index": index,
        "task_index": np.array(task_of)[episodes.task.numpy()],
    }


def _write_data(folder: Path, columns: dict[str, np.ndarray], spans: list[tuple[int, int]]) -> dict[str, list[int]]:
    """Writes the columns to parquet files, one row group per episode.

    `spans` are the rows (first, end) of each episode; the end is excluded.

    Returns:
        The numbers of the folder and the file of each episode, as columns of ``meta/episodes``.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    kinds = {key: pa.from_numpy_dtype(values.dtype) for key, values in columns.items()}
    lists = {key: pa.list_(kinds[key], values.shape[1]) for key, values in columns.items() if values.ndim > 1}
    schema = pa.schema(list((kinds | lists).items()))
    row_bytes = sum(values[0].nbytes for values in columns.values())
    position, rows, writer = FilePosition(), 0, None
    chunks: list[int] = []
    files: list[int] = []
    for first, last in spans:
        if writer is not None and (rows + last - first) * row_bytes > DATA_MB * 2**20:
            writer.close()
            position, rows, writer = position.next(), 0, None
        if writer is None:
            path = folder / DATA_PATH.format(chunk_index=position.chunk, file_index=position.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = parquet.ParquetWriter(path, schema, compression="snappy")
        arrays = []
        for key, values in columns.items():
            flat = pa.array(values[first:last].reshape(-1), kinds[key])
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, values.shape[1]) if values.ndim > 1 else flat)
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        rows += last - first
        chunks.append(position.chunk)
        files.append(position.file)
    assert writer is not None
    writer.close()
    return {"data/chunk_index": chunks, "data/file_index": files}


def _write_videos(
    folder: Path, episodes: RobotEpisodes, spans: list[tuple[int, int]], fps: float
) -> tuple[list[VideoWriter], dict[str, list[dict[str, Any]]]]:
    """Writes the videos of all cameras. `spans` are the rows (first, end) of each episode; the end is excluded.

    Returns:
        The writer of each camera, and the image statistics by name of the camera's feature: one dict per episode, then
        one of all episodes.
    """
    videos = [VideoWriter(folder, IMAGE_KEYS[camera][0], fps) for camera in episodes.cameras]
    histograms = {video.key: np.zeros((len(spans), 3, 256), np.int64) for video in videos}
    started = 0
    with count_progress_bar("writing videos", episodes.rows, "rows") as on_progress:
        for row, images in episodes.images() if videos else ():
            if started < len(spans) and row == spans[started][0]:
                started += 1
                for video in videos:
                    video.begin()
            for video, camera in zip(videos, episodes.cameras, strict=True):
                video.add(images[camera])
                for channel in range(3):
                    levels = images[camera][..., channel].reshape(-1)
                    histograms[video.key][started - 1, channel] += np.bincount(levels, minlength=256)
            on_progress(row + len(images[episodes.cameras[0]]))
    for video in videos:
        video.close()
    lengths = [last - first for first, last in spans]
    statistics = {
        key: [_image_statistics(counts, length) for counts, length in zip(each, lengths, strict=True)]
        + [_image_statistics(each.sum(0), sum(lengths))]
        for key, each in histograms.items()
    }
    return videos, statistics


def _statistics(values: np.ndarray) -> dict[str, list[float]]:
    """Computes LeRobot's statistics of n rows (n, ...).

    Returns:
        Name, such as ``mean`` or ``q99`` -> one value per entry of a row; ``count`` -> [n].
    """
    rows = values.reshape(len(values), -1).astype(np.float64)
    statistics = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    statistics |= {f"q{int(100 * share):02d}": np.quantile(rows, share, axis=0) for share in QUANTILES}
    return {name: value.tolist() for name, value in statistics.items()} | {"count": [len(rows)]}


def _image_statistics(counts: np.ndarray, images: int) -> dict[str, list[Any]]:
    """Computes LeRobot's statistics of images from their histograms, with pixel values from 0 to 1.

    Args:
        counts: Number of pixels of each channel and level, (3, 256).
        images: Number of images.

    Returns:
        Name, such as ``mean`` or ``q99`` -> nested lists (3, 1, 1), one value per channel; ``count`` -> [images].
    """
    share, level = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = (share * level).sum(1)
    statistics = {
        "min": level[(counts > 0).argmax(1)],
        "max": level[255 - (counts[:, ::-1] > 0).argmax(1)],
        "mean": mean,
        "std": np.sqrt((share * (level - mean[:, None]) ** 2).sum(1)),
    }
    statistics |= {f"q{int(100 * q):02d}": level[(share.cumsum(1) >= q).argmax(1)] for q in QUANTILES}
    return {name: value.reshape(3, 1, 1).tolist() for name, value in statistics.items()} | {"count": [images]}


def _info(
    episodes: RobotEpisodes,
    columns: dict[str, np.ndarray],
    videos: list[VideoWriter],
    fps: float,
    robot_type: str,
    num_tasks: int,
    num_episodes: int,
) -> dict[str, Any]:
    """Returns the content of ``meta/info.json``."""
    names = (*JOINT_NAMES, *POSE_NAMES) if 0 in episodes.slots else POSE_NAMES
    features: dict[str, Any] = {
        video.key: {
            "dtype": "video",
            "shape": [*video.shape, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": video.shape[0],
                "video.width": video.shape[1],
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": fps,
                "video.channels": 3,
                "has_audio": False,
            },
        }
        for video in videos
    }
    for key, values in columns.items():
        entry_names = {STATE: list(names), ACTION: list(ACTION_NAMES)}.get(key)
        features[key] = {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": entry_names}
    return {
        "codebase_version": "v3.0",
        "robot_type": robot_type,
        "total_episodes": num_episodes,
        "total_frames": episodes.rows,
        "total_tasks": num_tasks,
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": DATA_MB,
        "video_files_size_in_mb": MAX_VIDEO_MB,
        "fps": fps,
        "splits": {"train": f"0:{num_episodes}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if videos else None,
        "features": features,
    }


def _write_tasks(path: Path, tasks: list[str]) -> None:
    """Writes tasks as the index of a pandas table, as LeRobot expects them."""
    import pyarrow as pa

    columns = [("task_index", "int64", "int64"), ("task", "unicode", "object")]
    metadata = {
        "index_columns": ["task"],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
        ],
        "columns": [
            {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
            for name, kind, dtype in columns
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    _write_table(path, {"task_index": list(range(len(tasks))), "task": tasks}, {"pandas": json.dumps(metadata)})


def _write_table(path: Path, columns: dict[str, list[Any]], metadata: dict[str, str] | None = None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns).replace_schema_metadata(metadata), path, compression="snappy")


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=4, ensure_ascii=False), encoding="utf-8")
