"""Recordings: reads demonstrations that powerband recorded (stage ``demos`` of the recipe libero) as `RobotEpisodes`.

The demonstrations of a task are one `Recording`; a folder of them holds several tasks. Its steps have ``agentview`` and
``wrist`` (H, W, 3) uint8 upright, ``joints`` (7,), ``gripper`` (2,) positions of the fingers, ``eef_pos`` (3,),
``eef_quat`` (4,) x, y, z, w, and ``action`` (7,), executed after the observation. Its facts have ``instruction`` and
``hz``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.data.recorded.recording import FACTS_FILE
from powerband.data.recorded.shards import ShardError, read_manifest
from powerband.data.robot.episodes import CAMERAS, ImageBlock, RobotEpisodes, concatenate_episodes, fingerprint_files
from powerband.data.robot.unified_vector import gripper_opening

VECTOR_FIELDS = ("joints", "gripper", "eef_pos", "eef_quat", "action")


def read_recordings(folder: Path, limit: int | None = None) -> RobotEpisodes:
    """Reads demonstrations that powerband recorded; images are read when they are requested.

    Args:
        folder: A recording, or a folder of recordings, one per task, which are read in the order of their names.
        limit: Largest number of episodes per task, from the first; None reads all.

    Raises:
        ShardError: The folder has no recording; a field, the instruction or the control frequency is missing; or a file
            is damaged.
    """
    folders = [folder] if _is_recording(folder) else sorted(filter(_is_recording, folder.glob("*/")))
    if not folders:
        raise ShardError(
            f"{folder} has no episodes: neither recordings of powerband (recording.json or manifest.json, one folder "
            "per task), nor *.hdf5 of LIBERO, nor meta/info.json of a LeRobotDataset. Name another folder."
        )
    return concatenate_episodes([_read_recording(each, limit) for each in folders])


@dataclass(frozen=True)
class _EpisodePart:
    """Consecutive rows `first` to `last` (excluded) of one file that belong to one episode."""

    path: Path
    episode: int
    first: int
    last: int


def _is_recording(folder: Path) -> bool:
    has_facts = (folder / "manifest.json").exists() or (folder / FACTS_FILE).exists()
    return has_facts and not folder.name.startswith(".")


def _read_recording(folder: Path, limit: int | None) -> RobotEpisodes:
    packed = (folder / "manifest.json").exists()
    facts = read_manifest(folder)["facts"] if packed else json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
    if missing := [name for name in ("instruction", "hz") if name not in facts]:
        raise ShardError(
            f"The description of the recording {folder} has no {missing[0]}; it has {', '.join(facts)}. Remove the "
            f"folder, and record the episodes again."
        )
    episodes = [list(parts) for _, parts in groupby(_episode_parts(folder, packed), lambda part: part.episode)][:limit]
    parts = [part for episode in episodes for part in episode]
    if not parts:
        raise ShardError(f"{folder} has no finished episode. Record at least one with the stage demos.")
    with _opened(parts[0].path) as file:
        cameras = tuple(camera for camera in CAMERAS if camera in file.keys())  # noqa: SIM118
    rows = [_read_rows(part, VECTOR_FIELDS) for part in parts]
    fields: dict[str, Any] = {name: torch.cat([each[name] for each in rows]).float() for name in VECTOR_FIELDS}
    fields["gripper"] = gripper_opening(fields["gripper"])
    lengths = torch.tensor([sum(part.last - part.first for part in episode) for episode in episodes])

    def images() -> Iterator[ImageBlock]:
        row = 0
        for part in parts:
            yield row, {camera: block.numpy() for camera, block in _read_rows(part, cameras).items()}
            row += part.last - part.first

    return RobotEpisodes(
        **fields,
        episode=torch.arange(len(lengths)).repeat_interleave(lengths),
        task=torch.zeros(int(lengths.sum()), dtype=torch.int64),
        instructions=(str(facts["instruction"]),),
        hz=float(facts["hz"]),
        cameras=cameras,
        images=images,
        fingerprint=fingerprint_files(dict.fromkeys(part.path for part in parts), fields.values()),
    )


def _episode_parts(folder: Path, packed: bool) -> Iterator[_EpisodePart]:
    """Yields the parts of all episodes in the order of their rows; `packed` if shards hold several episodes each."""
    if packed:
        for shard in read_manifest(folder)["shards"]:
            with _opened(folder / shard["file"]) as file:
                numbers, lengths = file.get_tensor("episode").unique_consecutive(return_counts=True)
            ends = lengths.cumsum(0).tolist()
            for number, first, last in zip(numbers.tolist(), [0, *ends], ends, strict=False):
                yield _EpisodePart(folder / shard["file"], number, first, last)
    else:
        for path in sorted((folder / "episodes").glob("*.safetensors")):
            with _opened(path) as file:
                steps = file.get_slice(next(iter(file.keys()))).get_shape()[0]
            yield _EpisodePart(path, int(path.stem), 0, steps)


def _read_rows(part: _EpisodePart, names: Sequence[str]) -> dict[str, Tensor]:
    with _opened(part.path) as file:
        fields = list(file.keys())
        if missing := [name for name in names if name not in fields]:
            raise ShardError(
                f"{part.path} has no field {missing[0]}; it has {', '.join(fields)}. {_record_again(part.path)}"
            )
        return {name: file.get_slice(name)[part.first : part.last] for name in names}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ShardError(f"{path} cannot be read ({error}). {_record_again(path)}") from error


def _record_again(path: Path) -> str:
    """Returns the fix for a damaged file: one episode of an unfinished recording, or a shard of a finished one."""
    damaged = path if path.parent.name == "episodes" else path.parent
    return f"Remove {damaged}, then repeat the command that recorded it."
