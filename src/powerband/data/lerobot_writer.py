"""Writes `RobotEpisodes` as a LeRobotDataset v3, which `lerobot` reads, and LeRobot.

Source: the LeRobot documentation, "LeRobotDataset v3.0", and the datasets published by lerobot for what it leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from powerband.core.console import count_shown
from powerband.core.flags import ConfigError
from powerband.data.frames import placed
from powerband.data.lerobot import ACTION, JOINT_NAMES, PICTURES, POSE_NAMES, STATE
from powerband.data.lerobot_films import FILES_A_CHUNK, FILM_MB, FILM_PATH, PLACED, Film, Place
from powerband.data.robot_episodes import RobotEpisodes

ACTION_NAMES = ("delta_x", "delta_y", "delta_z", "rotation_x", "rotation_y", "rotation_z", "gripper")
DATA_MB = 100
"""What a file of numbers may hold."""
QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
DATA_PATH = f"data/{PLACED}.parquet"
EPISODES_PATH = f"meta/episodes/{PLACED}.parquet".format(chunk_index=0, file_index=0)


def write_lerobot(folder: Path, episodes: RobotEpisodes, robot_type: str = "panda") -> Path:
    """Writes a dataset in place of the one that `folder` held; returns it.

    Numbers are kept bit for bit, pictures are compressed (H.264). Tasks of one instruction become one.

    Args:
        folder: Where it is to lie.
        episodes: Their pictures have even sides.
        robot_type: What the dataset says of its robot.

    Raises:
        ConfigError: pyarrow or av is not installed, or pictures have odd sides.
        ShardError: The disk is full, the folder cannot be written, or it holds something else.
    """
    try:
        import av  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError:
        raise ConfigError("A LeRobotDataset is parquet. Install it: pip install 'powerband[libero]'") from None
    fps = int(episodes.hz) if float(episodes.hz).is_integer() else float(episodes.hz)
    tasks = list(dict.fromkeys(episodes.instructions))
    columns = _columns_of(episodes, [tasks.index(text) for text in episodes.instructions], fps)
    bounds = np.flatnonzero(np.diff(columns["episode_index"], prepend=-1, append=-1)).tolist()
    spans = list(zip(bounds, bounds[1:], strict=False))
    with placed(folder, "meta/info.json") as hidden:
        table = {"episode_index": list(range(len(spans)))}
        table["tasks"] = [[tasks[columns["task_index"][first]]] for first, _ in spans]
        table["length"] = [last - first for first, last in spans]
        table |= _write_data(hidden, columns, spans)
        table |= {"dataset_from_index": [first for first, _ in spans], "dataset_to_index": [last for _, last in spans]}
        films, figures = _write_films(hidden, episodes, spans, fps)
        for film in films:
            table |= {f"videos/{film.key}/{name}": [place[name] for place in film.places] for name in film.places[0]}
        for key, values in columns.items():
            figures[key] = [_figures(values[first:last]) for first, last in spans] + [_figures(values)]
        for key, each in figures.items():
            table |= {f"stats/{key}/{name}": [part[name] for part in each[:-1]] for name in each[0]}
        table |= {f"meta/episodes/{name}": [0] * len(spans) for name in ("chunk_index", "file_index")}
        _write_table(hidden / EPISODES_PATH, table)
        _write_tasks(hidden / "meta" / "tasks.parquet", tasks)
        info = _info(episodes, columns, films, fps, robot_type, len(tasks), len(spans))
        _write_json(hidden / "meta" / "info.json", info)
        _write_json(hidden / "meta" / "stats.json", {key: each[-1] for key, each in figures.items()})
    return folder


def _columns_of(episodes: RobotEpisodes, task_of: Sequence[int], fps: float) -> dict[str, np.ndarray]:
    """Columns of the files of numbers, (N, n) or (N,)."""
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
    """Writes the numbers, a row group an episode; returns in which file each episode is."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    kinds = {key: pa.from_numpy_dtype(values.dtype) for key, values in columns.items()}
    lists = {key: pa.list_(kinds[key], values.shape[1]) for key, values in columns.items() if values.ndim > 1}
    schema = pa.schema(list((kinds | lists).items()))
    row_bytes = sum(values[0].nbytes for values in columns.values())
    place, rows, writer = Place(), 0, None
    chunks, files = [], []
    for first, last in spans:
        if writer is not None and (rows + last - first) * row_bytes > DATA_MB * 2**20:
            writer.close()
            place, rows, writer = place.next(), 0, None
        if writer is None:
            path = folder / DATA_PATH.format(chunk_index=place.chunk, file_index=place.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = parquet.ParquetWriter(path, schema, compression="snappy")
        arrays = []
        for key, values in columns.items():
            flat = pa.array(values[first:last].reshape(-1), kinds[key])
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, values.shape[1]) if values.ndim > 1 else flat)
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        rows += last - first
        chunks.append(place.chunk)
        files.append(place.file)
    writer.close()
    return {"data/chunk_index": chunks, "data/file_index": files}


def _write_films(
    folder: Path, episodes: RobotEpisodes, spans: list[tuple[int, int]], fps: float
) -> tuple[list[Film], dict[str, list[dict[str, Any]]]]:
    """Writes the films; returns them, and of each its figures by episode and, last, of all."""
    films = [Film(folder, PICTURES[camera][0], fps) for camera in episodes.cameras]
    levels = {film.key: np.zeros((len(spans), 3, 256), np.int64) for film in films}
    begun = 0
    with count_shown("writing films", episodes.rows, "rows") as tell:
        for row, pictures in episodes.pictures() if films else ():
            if begun < len(spans) and row == spans[begun][0]:
                begun += 1
                for film in films:
                    film.begin()
            for film, camera in zip(films, episodes.cameras, strict=True):
                film.add(pictures[camera])
                for channel in range(3):
                    seen = pictures[camera][..., channel].reshape(-1)
                    levels[film.key][begun - 1, channel] += np.bincount(seen, minlength=256)
            tell(row + len(pictures[episodes.cameras[0]]))
    for film in films:
        film.close()
    lengths = [last - first for first, last in spans]
    figures = {
        key: [_picture_figures(counts, length) for counts, length in zip(each, lengths, strict=True)]
        + [_picture_figures(each.sum(0), sum(lengths))]
        for key, each in levels.items()
    }
    return films, figures


def _figures(values: np.ndarray) -> dict[str, list[float]]:
    """LeRobot's statistics of rows (n, ...)."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    found = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    found |= {f"q{int(100 * share):02d}": np.quantile(rows, share, axis=0) for share in QUANTILES}
    return {name: value.tolist() for name, value in found.items()} | {"count": [len(rows)]}


def _picture_figures(counts: np.ndarray, pictures: int) -> dict[str, list]:
    """The same of pictures, of values from 0 to 1 and for each channel: (3, 1, 1).

    Args:
        counts: (3, 256): how many pixels have each level.
        pictures: How many there are.
    """
    share, level = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = (share * level).sum(1)
    found = {
        "min": level[(counts > 0).argmax(1)],
        "max": level[255 - (counts[:, ::-1] > 0).argmax(1)],
        "mean": mean,
        "std": np.sqrt((share * (level - mean[:, None]) ** 2).sum(1)),
    }
    found |= {f"q{int(100 * q):02d}": level[(share.cumsum(1) >= q).argmax(1)] for q in QUANTILES}
    return {name: value.reshape(3, 1, 1).tolist() for name, value in found.items()} | {"count": [pictures]}


def _info(
    episodes: RobotEpisodes,
    columns: dict[str, np.ndarray],
    films: list[Film],
    fps: float,
    robot_type: str,
    num_tasks: int,
    num_episodes: int,
) -> dict[str, Any]:
    """What ``meta/info.json`` says."""
    names = (*JOINT_NAMES, *POSE_NAMES) if 0 in episodes.slots else POSE_NAMES
    features: dict[str, Any] = {
        film.key: {
            "dtype": "video",
            "shape": [*film.shape, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": film.shape[0],
                "video.width": film.shape[1],
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": fps,
                "video.channels": 3,
                "has_audio": False,
            },
        }
        for film in films
    }
    for key, values in columns.items():
        named = {STATE: list(names), ACTION: list(ACTION_NAMES)}.get(key)
        features[key] = {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": named}
    return {
        "codebase_version": "v3.0",
        "robot_type": robot_type,
        "total_episodes": num_episodes,
        "total_frames": episodes.rows,
        "total_tasks": num_tasks,
        "chunks_size": FILES_A_CHUNK,
        "data_files_size_in_mb": DATA_MB,
        "video_files_size_in_mb": FILM_MB,
        "fps": fps,
        "splits": {"train": f"0:{num_episodes}"},
        "data_path": DATA_PATH,
        "video_path": FILM_PATH if films else None,
        "features": features,
    }


def _write_tasks(path: Path, tasks: list[str]) -> None:
    """Tasks as pandas writes a table whose index they are, which is how LeRobot reads them."""
    import pyarrow as pa

    columns = [("task_index", "int64", "int64"), ("task", "unicode", "object")]
    told = {
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
    _write_table(path, {"task_index": list(range(len(tasks))), "task": tasks}, {"pandas": json.dumps(told)})


def _write_table(path: Path, columns: dict[str, list], metadata: dict[str, str] | None = None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns).replace_schema_metadata(metadata), path, compression="snappy")


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=4, ensure_ascii=False), encoding="utf-8")
