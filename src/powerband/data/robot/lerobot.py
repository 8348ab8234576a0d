"""LeRobotDataset v3: reads a dataset of this format into `RobotEpisodes`; `lerobot_writer` writes such datasets.

A parquet file holds the numbers of many episodes, and a video per camera their images; ``meta/episodes`` has the
position of each episode. Source: the LeRobot documentation, "LeRobotDataset v3.0".

Supported are datasets of `lerobot_writer`, and the published conversions of LIBERO. The state of these conversions has
8 entries (position, rotation vector, two fingers), mostly without joints. Their images are mirrored horizontally: they
were rotated by 180 degrees instead of flipped vertically (lerobot issue 3830). This reader mirrors them back.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.recorded.shards import ShardError
from powerband.data.robot.episodes import CAMERAS, ImageBlock, RobotEpisodes, fingerprint_files
from powerband.data.robot.lerobot_videos import read_video_frames
from powerband.data.robot.unified_vector import ACTION_DIM, STATE_SLOTS, axis_angle_to_quat, gripper_opening

STATE, ACTION, LIBERO_JOINTS = "observation.state", "action", "observation.states.joint_state"
JOINT_NAMES = tuple(f"joint_{number}" for number in range(7))
POSE_NAMES = ("gripper", "eef_x", "eef_y", "eef_z", "eef_qx", "eef_qy", "eef_qz", "eef_qw")
"""Names of a state's entries in datasets of `lerobot_writer`, after those of the joints, if any."""
IMAGE_KEYS = {
    "agentview": ("observation.images.agentview", "observation.images.image"),
    "wrist": ("observation.images.wrist", "observation.images.wrist_image", "observation.images.image2"),
}
"""Camera -> names of its images in datasets of `lerobot_writer` and in conversions of LIBERO."""
VIDEO_POSITION_KEYS = ("chunk_index", "file_index", "from_timestamp")
"""Fields of ``meta/episodes`` with the position of an episode's video."""


def read_lerobot(folder: Path, limit: int | None = None, mirrored: bool | None = None) -> RobotEpisodes:
    """Reads a LeRobotDataset v3; images are decoded when they are requested.

    Args:
        folder: Folder with ``meta/info.json``.
        limit: Largest number of episodes per task, from the first; None reads all.
        mirrored: True if the images are mirrored horizontally; None assumes this for conversions of LIBERO only.

    Raises:
        ConfigError: pyarrow or av is not installed, or the dataset has another version or another robot.
        ShardError: A file or a column is missing or damaged.
    """
    info = _info(folder)
    features = info["features"]
    if missing := [name for name in (STATE, ACTION) if name not in features]:
        raise ConfigError(f"{folder} has no feature {missing[0]}; it has {', '.join(features)}. Name another dataset.")
    if features[ACTION]["shape"] != [ACTION_DIM]:
        raise ConfigError(
            f"{folder} has actions of shape {features[ACTION]['shape']}, but this robot needs [{ACTION_DIM}] (change "
            "of position and of rotation, gripper). Name a dataset of one Panda arm with the controller OSC_POSE."
        )
    files = sorted(folder.glob("data/*/*.parquet"))
    if not files:
        raise ShardError(f"{folder} has no data/*/*.parquet. Download the complete dataset.")
    columns = [name for name in (STATE, ACTION, LIBERO_JOINTS) if name in features]
    parts = [_columns(file, [*columns, "index", "episode_index", "task_index"]) for file in files]
    values = {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}
    order = np.lexsort((values["index"], values["episode_index"]))
    selected = order[_first_episodes(values["episode_index"][order], values["task_index"][order], limit)]
    values = {name: value[selected] for name, value in values.items()}
    state, slots, from_writer = _state(features, values, folder)
    numbers, episode = np.unique(values["episode_index"], return_inverse=True)
    tasks, task = np.unique(values["task_index"], return_inverse=True)
    known_keys = {camera: [key for key in IMAGE_KEYS[camera] if key in features] for camera in CAMERAS}
    keys = {camera: each[0] for camera, each in known_keys.items() if each}
    kinds = {features[key]["dtype"] for key in keys.values()}
    if len(kinds) > 1:
        raise ConfigError(
            f"The cameras of {folder} differ in type ({' and '.join(sorted(kinds))}). Convert all to one of these "
            f"types."
        )
    if mirrored is None:
        mirrored = not from_writer

    def images() -> Iterator[ImageBlock]:
        lengths = np.bincount(episode).tolist()
        if kinds == {"video"}:
            blocks = _video_blocks(folder, info, keys, numbers.tolist(), lengths)
        else:
            blocks = _image_blocks(files, keys, values["index"].tolist())
        for row, block in blocks:
            yield row, {camera: each[:, :, ::-1] if mirrored else each for camera, each in block.items()}

    action, instructions = torch.from_numpy(values[ACTION]).float(), _instructions(folder)
    videos = sorted(folder.glob("videos/*/*/*.mp4"))
    return RobotEpisodes(
        **state,
        action=action,
        episode=torch.from_numpy(episode),
        task=torch.from_numpy(task),
        instructions=tuple(instructions[index] for index in tasks.tolist()),
        hz=float(info["fps"]),
        cameras=tuple(keys),
        images=images,
        fingerprint=fingerprint_files([*files, *videos], [action, torch.tensor(mirrored)]),
        slots=slots,
    )


def _info(folder: Path) -> dict[str, Any]:
    path = folder / "meta" / "info.json"
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShardError(f"{path} cannot be read ({error}). Download it again.") from error
    version = str(info.get("codebase_version"))
    if not version.startswith("v3."):
        raise ConfigError(
            f"{folder} is a LeRobotDataset {version}; only v3.0 is supported. Convert it with LeRobot: "
            "python -m lerobot.scripts.convert_dataset_v21_to_v30."
        )
    return info


def _instructions(folder: Path) -> dict[int, str]:
    """Reads the instruction of each task index. The instructions are the index, named or not, of a pandas table."""
    table = _parquet(folder / "meta" / "tasks.parquet")
    column = next((name for name in ("task", "__index_level_0__") if name in table.column_names), None)
    if column is None:
        names = ", ".join(table.column_names)
        raise ShardError(f"{folder}/meta/tasks.parquet has no column task; it has {names}. Download it again.")
    return dict(zip(table["task_index"].to_pylist(), map(str, table[column].to_pylist()), strict=True))


def _first_episodes(episode: np.ndarray, task: np.ndarray, limit: int | None) -> np.ndarray:
    """Returns a mask (N,) of N rows: True in the first `limit` episodes of each task, or everywhere without `limit`."""
    numbers, first = np.unique(episode, return_index=True)
    counts: Counter[int] = Counter()
    selected = []
    for number, its_task in zip(numbers.tolist(), task[first].tolist(), strict=True):
        counts[its_task] += 1
        if limit is None or counts[its_task] <= limit:
            selected.append(number)
    return np.isin(episode, selected)


def _state(
    features: dict[str, Any], values: dict[str, np.ndarray], folder: Path
) -> tuple[dict[str, Tensor], tuple[int, ...], bool]:
    """Converts the recorded state to fields of `RobotEpisodes`.

    Returns:
        joints, gripper, eef_pos and eef_quat by name; the slots (entries of the unified vector) that they fill; and
        True if `lerobot_writer` wrote the dataset.
    """
    state, names = torch.from_numpy(values[STATE]).float(), _names(features[STATE])
    joints = torch.zeros(len(state), 7)
    if set(POSE_NAMES) <= set(names):
        entries = {name: state[:, number] for number, name in enumerate(names)}
        if has_joints := set(JOINT_NAMES) <= set(names):
            joints = torch.stack([entries[name] for name in JOINT_NAMES], 1)
        pose = torch.stack([entries[name] for name in POSE_NAMES], 1)
        fields = {"joints": joints, "gripper": pose[:, 0], "eef_pos": pose[:, 1:4], "eef_quat": pose[:, 4:]}
        return fields, STATE_SLOTS if has_joints else STATE_SLOTS[7:], True
    if state.shape[1] != 8 or any(name.startswith("q") for name in names):
        raise ConfigError(
            f"{folder} has a state of {state.shape[1]} entries ({', '.join(names) or 'without names'}). Supported are "
            f"the 8 entries of LIBERO (position, rotation vector, two fingers), or entries with the names "
            f"{', '.join((*JOINT_NAMES, *POSE_NAMES))}. Name another dataset."
        )
    if has_joints := LIBERO_JOINTS in values:
        joints = torch.from_numpy(values[LIBERO_JOINTS]).float()
    fields = {
        "joints": joints,
        "gripper": gripper_opening(state[:, 6:]),
        "eef_pos": state[:, :3],
        "eef_quat": axis_angle_to_quat(state[:, 3:6].double()).float(),
    }
    return fields, STATE_SLOTS if has_joints else STATE_SLOTS[7:], False


def _names(feature: dict[str, Any]) -> list[str]:
    """Returns the names of a feature's entries; some datasets nest them one level deeper."""
    names = feature.get("names") or []
    return [str(name) for name in (next(iter(names.values())) if isinstance(names, dict) else names)]


def _video_blocks(
    folder: Path, info: dict[str, Any], keys: dict[str, str], numbers: Sequence[int], lengths: Sequence[int]
) -> Iterator[ImageBlock]:
    """Yields the images of episodes from videos, one block per episode.

    Args:
        folder: Folder of the dataset.
        info: Content of ``meta/info.json``.
        keys: Camera -> name of its feature in the dataset.
        numbers: Numbers of the episodes.
        lengths: Rows of each of these episodes.
    """
    columns = [f"videos/{key}/{name}" for key in keys.values() for name in VIDEO_POSITION_KEYS]
    positions: dict[int, dict[str, Any]] = {}
    for file in sorted(folder.glob("meta/episodes/*/*.parquet")):
        for position in _parquet(file, ["episode_index", *columns]).to_pylist():
            positions[position["episode_index"]] = position
    row = 0
    for number, count in zip(numbers, lengths, strict=True):
        if number not in positions:
            raise ShardError(f"{folder}/meta/episodes does not list episode {number}. Download the complete dataset.")
        block = {}
        for camera, key in keys.items():
            chunk, file_index, start = (positions[number][f"videos/{key}/{name}"] for name in VIDEO_POSITION_KEYS)
            path = folder / info["video_path"].format(video_key=key, chunk_index=chunk, file_index=file_index)
            block[camera] = read_video_frames(path, float(start), count, float(info["fps"]))
        yield row, block
        row += count


def _image_blocks(files: Sequence[Path], keys: dict[str, str], index: Sequence[int]) -> Iterator[ImageBlock]:
    """Yields the PNG or JPEG images in parquet files, row by row.

    Args:
        files: Parquet files.
        keys: Camera -> name of its column.
        index: Values of the column ``index`` of the rows to read; the position in `index` is the row that is yielded.
    """
    import pyarrow.parquet as parquet
    from PIL import Image

    row_of = {number: row for row, number in enumerate(index)}
    for file in files:
        for batch in parquet.ParquetFile(file).iter_batches(64, columns=["index", *keys.values()]):
            for each in batch.to_pylist():
                if each["index"] in row_of:
                    try:
                        images = {camera: Image.open(io.BytesIO(each[key]["bytes"])) for camera, key in keys.items()}
                        block = {camera: np.asarray(image.convert("RGB"))[None] for camera, image in images.items()}
                    except OSError as error:
                        raise ShardError(
                            f"{file}: the image of row {each['index']} is damaged ({error}). Write the dataset again, "
                            f"or remove its episode."
                        ) from error
                    yield row_of[each["index"]], block


def _columns(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Reads columns of a parquet file by name: arrays (rows,), or (rows, n) for lists of n entries."""
    table = _parquet(path, names)
    columns = {}
    for name in names:
        column = table[name].combine_chunks()
        nested = column.type.num_fields == 1
        values = (column.flatten() if nested else column).to_numpy(zero_copy_only=False)
        columns[name] = values.reshape(len(column), -1) if nested else values
    return columns


def _parquet(path: Path, names: Sequence[str] | None = None) -> Any:
    """Reads the columns `names` of a parquet file as a pyarrow table; None reads all."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ConfigError(f"Reading {path} needs the package pyarrow. Run pip install 'powerband[libero]'.") from None
    try:
        columns = parquet.read_schema(path).names
        if missing := [name for name in names or () if name not in columns]:
            raise ShardError(f"{path} has no column {missing[0]}; it has {', '.join(columns)}. Download it again.")
        return parquet.read_table(path, columns=None if names is None else list(names))
    except (OSError, pyarrow.ArrowException) as error:
        raise ShardError(f"{path} cannot be read ({error}). Download it again.") from error
