"""LeRobotDataset v3 read into `RobotEpisodes`; `lerobot_writer` writes one.

Many episodes lie in one parquet file of numbers and, a camera each, in one film; ``meta/episodes`` says where each of
them begins. Source: the LeRobot documentation, "LeRobotDataset v3.0".

Read are datasets that `lerobot_writer` wrote, and the conversions of LIBERO that are published: a state of 8 numbers
(position, axis times angle, two fingers), mostly without joints, and pictures that are mirrored, left for right: they
were turned by half a turn where turning them upside down was due (lerobot issue 3830). They are mirrored back here.
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

from powerband.core.flags import ConfigError
from powerband.data.lerobot_films import film_part
from powerband.data.robot_episodes import CAMERAS, Block, RobotEpisodes, fingerprint_of
from powerband.data.shards import ShardError
from powerband.data.unified import ACTION_DIM, STATE_SLOTS, gripper_opening, quat_of

STATE, ACTION, LIBERO_JOINTS = "observation.state", "action", "observation.states.joint_state"
JOINT_NAMES = tuple(f"joint_{number}" for number in range(7))
POSE_NAMES = ("gripper", "eef_x", "eef_y", "eef_z", "eef_qx", "eef_qy", "eef_qz", "eef_qw")
"""What `lerobot_writer` calls a state's numbers; the joints come first, where there are any."""
PICTURES = {
    "agentview": ("observation.images.agentview", "observation.images.image"),
    "wrist": ("observation.images.wrist", "observation.images.wrist_image", "observation.images.image2"),
}
"""Camera -> what it is called: by `lerobot_writer`, then in conversions of LIBERO."""
PLACE = ("chunk_index", "file_index", "from_timestamp")
"""Where an episode's film is, as ``meta/episodes`` has it."""


def read_lerobot(folder: Path, limit: int | None = None, mirrored: bool | None = None) -> RobotEpisodes:
    """Reads a dataset; pictures are decoded when they are asked for.

    Args:
        folder: With ``meta/info.json``.
        limit: Episodes of each task at most, the first ones; None is all.
        mirrored: The pictures are mirrored, left for right; None: they are, where it is a conversion of LIBERO.

    Raises:
        ConfigError: pyarrow or av is not installed; the dataset is of another version, or of another robot.
        ShardError: A file or a column is missing, or damaged; it is named.
    """
    info = _info(folder)
    features = info["features"]
    if missing := [name for name in (STATE, ACTION) if name not in features]:
        raise ConfigError(f"{folder} has no {missing[0]}; it has {', '.join(features)}.")
    if features[ACTION]["shape"] != [ACTION_DIM]:
        raise ConfigError(
            f"{folder} has actions of shape {features[ACTION]['shape']}, this robot takes {ACTION_DIM} numbers (change "
            "of position and of rotation, gripper): they are of another robot or controller."
        )
    files = sorted(folder.glob("data/*/*.parquet"))
    if not files:
        raise ShardError(f"{folder} holds no data/*/*.parquet: download it whole.")
    wanted = [name for name in (STATE, ACTION, LIBERO_JOINTS) if name in features]
    parts = [_columns(file, [*wanted, "index", "episode_index", "task_index"]) for file in files]
    found = {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}
    order = np.lexsort((found["index"], found["episode_index"]))
    kept = order[_of_first(found["episode_index"][order], found["task_index"][order], limit)]
    found = {name: value[kept] for name, value in found.items()}
    state, slots, ours = _state(features, found, folder)
    numbers, episode = np.unique(found["episode_index"], return_inverse=True)
    known, task = np.unique(found["task_index"], return_inverse=True)
    keys = {camera: next((key for key in PICTURES[camera] if key in features), None) for camera in CAMERAS}
    keys = {camera: key for camera, key in keys.items() if key is not None}
    kinds = {features[key]["dtype"] for key in keys.values()}
    if len(kinds) > 1:
        raise ConfigError(f"{folder} has pictures as {' and '.join(sorted(kinds))}: convert it to one of them.")
    turned = not ours if mirrored is None else mirrored

    def pictures() -> Iterator[Block]:
        lengths = np.bincount(episode).tolist()
        films = _films(folder, info, keys, numbers.tolist(), lengths)
        for row, seen in films if kinds == {"video"} else _stills(files, keys, found["index"].tolist()):
            yield row, {camera: each[:, :, ::-1] if turned else each for camera, each in seen.items()}

    action, texts = torch.from_numpy(found[ACTION]).float(), _tasks(folder)
    films = sorted(folder.glob("videos/*/*/*.mp4"))
    return RobotEpisodes(
        **state,
        action=action,
        episode=torch.from_numpy(episode),
        task=torch.from_numpy(task),
        instructions=tuple(texts[index] for index in known.tolist()),
        hz=float(info["fps"]),
        cameras=tuple(keys),
        pictures=pictures,
        fingerprint=fingerprint_of([*files, *films], [action, torch.tensor(turned)]),
        slots=slots,
    )


def _info(folder: Path) -> dict[str, Any]:
    path = folder / "meta" / "info.json"
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShardError(f"{path} cannot be read ({error}): download it again.") from error
    version = str(info.get("codebase_version"))
    if not version.startswith("v3."):
        raise ConfigError(
            f"{folder} is a LeRobotDataset {version}, v3.0 is read: convert it with LeRobot, "
            "python -m lerobot.scripts.convert_dataset_v21_to_v30."
        )
    return info


def _tasks(folder: Path) -> dict[int, str]:
    """Index -> instruction; the instruction is the index of a pandas table, with a name or without."""
    table = _parquet(folder / "meta" / "tasks.parquet")
    named = next((name for name in ("task", "__index_level_0__") if name in table.column_names), None)
    if named is None:
        raise ShardError(f"{folder}/meta/tasks.parquet has no column task; it has {', '.join(table.column_names)}.")
    return dict(zip(table["task_index"].to_pylist(), map(str, table[named].to_pylist()), strict=True))


def _of_first(episode: np.ndarray, task: np.ndarray, limit: int | None) -> np.ndarray:
    """(N,) bool: rows of the first `limit` episodes of each task; episodes follow one another."""
    numbers, first = np.unique(episode, return_index=True)
    met: Counter[int] = Counter()
    kept = []
    for number, its in zip(numbers.tolist(), task[first].tolist(), strict=True):
        met[its] += 1
        if limit is None or met[its] <= limit:
            kept.append(number)
    return np.isin(episode, kept)


def _state(
    features: dict[str, Any], found: dict[str, np.ndarray], folder: Path
) -> tuple[dict[str, Tensor], tuple[int, ...], bool]:
    """Fields of the state, the slots that they fill, and whether `lerobot_writer` wrote it."""
    values, names = torch.from_numpy(found[STATE]).float(), _names(features[STATE])
    joints = torch.zeros(len(values), 7)
    if set(POSE_NAMES) <= set(names):
        at = {name: values[:, number] for number, name in enumerate(names)}
        if has_joints := set(JOINT_NAMES) <= set(names):
            joints = torch.stack([at[name] for name in JOINT_NAMES], 1)
        pose = torch.stack([at[name] for name in POSE_NAMES], 1)
        fields = {"joints": joints, "gripper": pose[:, 0], "eef_pos": pose[:, 1:4], "eef_quat": pose[:, 4:]}
        return fields, STATE_SLOTS if has_joints else STATE_SLOTS[7:], True
    if values.shape[1] != 8 or any(name.startswith("q") for name in names):
        raise ConfigError(
            f"{folder} has a state of {values.shape[1]} numbers ({', '.join(names) or 'without names'}). Read are 8, "
            f"as LIBERO's (position, axis times angle, two fingers), and {', '.join((*JOINT_NAMES, *POSE_NAMES))}."
        )
    if has_joints := LIBERO_JOINTS in found:
        joints = torch.from_numpy(found[LIBERO_JOINTS]).float()
    fields = {
        "joints": joints,
        "gripper": gripper_opening(values[:, 6:]),
        "eef_pos": values[:, :3],
        "eef_quat": quat_of(values[:, 3:6].double()).float(),
    }
    return fields, STATE_SLOTS if has_joints else STATE_SLOTS[7:], False


def _names(feature: dict[str, Any]) -> list[str]:
    """Names of a feature's numbers; some datasets have them a level deeper."""
    names = feature.get("names") or []
    return [str(name) for name in (next(iter(names.values())) if isinstance(names, dict) else names)]


def _films(
    folder: Path, info: dict[str, Any], keys: dict[str, str], numbers: Sequence[int], lengths: Sequence[int]
) -> Iterator[Block]:
    """Pictures of the episodes `numbers`, from films."""
    told = [f"videos/{key}/{name}" for key in keys.values() for name in PLACE]
    places: dict[int, dict[str, Any]] = {}
    for file in sorted(folder.glob("meta/episodes/*/*.parquet")):
        for place in _parquet(file, ["episode_index", *told]).to_pylist():
            places[place["episode_index"]] = place
    row = 0
    for number, count in zip(numbers, lengths, strict=True):
        if number not in places:
            raise ShardError(f"{folder}/meta/episodes says nothing of episode {number}: download it whole.")
        seen = {}
        for camera, key in keys.items():
            chunk, file, begin = (places[number][f"videos/{key}/{name}"] for name in PLACE)
            path = folder / info["video_path"].format(video_key=key, chunk_index=chunk, file_index=file)
            seen[camera] = film_part(path, float(begin), count, float(info["fps"]))
        yield row, seen
        row += count


def _stills(files: Sequence[Path], keys: dict[str, str], index: Sequence[int]) -> Iterator[Block]:
    """Pictures of the rows whose ``index`` is among `index`, which lie in the parquet files as PNG or JPEG."""
    import pyarrow.parquet as parquet
    from PIL import Image

    row_of = {number: row for row, number in enumerate(index)}
    for file in files:
        for batch in parquet.ParquetFile(file).iter_batches(64, columns=["index", *keys.values()]):
            for each in batch.to_pylist():
                if each["index"] in row_of:
                    opened = {camera: Image.open(io.BytesIO(each[key]["bytes"])) for camera, key in keys.items()}
                    seen = {camera: np.asarray(picture.convert("RGB"))[None] for camera, picture in opened.items()}
                    yield row_of[each["index"]], seen


def _columns(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns (rows,), or (rows, n) where they hold lists of n."""
    table = _parquet(path, names)
    found = {}
    for name in names:
        column = table[name].combine_chunks()
        nested = column.type.num_fields == 1
        values = (column.flatten() if nested else column).to_numpy(zero_copy_only=False)
        found[name] = values.reshape(len(column), -1) if nested else values
    return found


def _parquet(path: Path, names: Sequence[str] | None = None) -> Any:
    """A table of the columns `names`, all where None."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ConfigError(f"{path} is parquet. Install what reads it: pip install 'powerband[libero]'") from None
    try:
        there = parquet.read_schema(path).names
        if missing := [name for name in names or () if name not in there]:
            raise ShardError(f"{path} has no column {missing[0]}; it has {', '.join(there)}.")
        return parquet.read_table(path, columns=None if names is None else list(names))
    except (OSError, pyarrow.ArrowException) as error:
        raise ShardError(f"{path} cannot be read ({error}): download it again.") from error
