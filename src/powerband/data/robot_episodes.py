"""RobotEpisodes: recorded episodes of an arm, whatever they were read from; here, powerband's own recordings.

A recording of demonstrations is a folder with one `Recording` a task in it. Its steps have ``agentview`` and ``wrist``
(H, W, 3) uint8 upright, ``joints`` (7,), ``gripper`` (2,) positions of the fingers, ``eef_pos`` (3,), ``eef_quat`` (4,)
x, y, z, w, and ``action`` (7,), which was taken after all that was seen; its facts have ``instruction`` and ``hz``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.flags import ConfigError
from powerband.data.recording import FACTS
from powerband.data.shards import ShardError, manifest_of
from powerband.data.unified import ACTION_DIM, STATE_SLOTS, gripper_opening, slots_there, state_vector

CAMERAS = ("agentview", "wrist")
"""Of all robots here, in the order of a batch's cameras."""
NUMBERS = {"joints": 7, "eef_pos": 3, "eef_quat": 4, "action": ACTION_DIM}
"""Fields of numbers that a row has several of, and how many."""

Block = tuple[int, dict[str, np.ndarray]]
"""The first of some rows that follow one another in one episode, and their pictures (n, H, W, 3) uint8 by camera."""


@dataclass(frozen=True, eq=False)
class RobotEpisodes:
    """Rows of recorded steps, N in all; the rows of an episode follow one another.

    Attributes:
        joints: (N, 7) float32, radians.
        gripper: (N,) float32 opening, 0 to 1.
        eef_pos: (N, 3) float32, metres.
        eef_quat: (N, 4) float32: x, y, z, w.
        action: (N, 7) float32 of LIBERO's controller: what was done after the row was seen.
        episode: (N,) int64 from 0 on.
        task: (N,) int64 index of `instructions`.
        instructions: What each task was called.
        hz: Actions a second.
        cameras: Names of `CAMERAS` that there are pictures of.
        pictures: Begins a pass over all pictures, block by block, in the order of rows.
        fingerprint: Tells these episodes from others.
        slots: Of the unified vector that the state fills; the fields of others mean nothing.

    Raises:
        ConfigError: A field has other sizes than these, or a number is not finite.
    """

    joints: Tensor
    gripper: Tensor
    eef_pos: Tensor
    eef_quat: Tensor
    action: Tensor
    episode: Tensor
    task: Tensor
    instructions: tuple[str, ...]
    hz: float
    cameras: tuple[str, ...]
    pictures: Callable[[], Iterator[Block]]
    fingerprint: str
    slots: tuple[int, ...] = STATE_SLOTS

    def __post_init__(self) -> None:
        for name, wide in NUMBERS.items():
            field = getattr(self, name)
            if field.shape != (self.rows, wide):
                raise ConfigError(
                    f"{name} of {self.instructions[0]!r} is {tuple(field.shape)}, and {(self.rows, wide)} is what this "
                    "robot has (one Panda arm, OSC_POSE): record it with that arm and controller."
                )
        for name in (*NUMBERS, "gripper"):
            if bad := (~getattr(self, name).reshape(self.rows, -1).isfinite().all(1)).nonzero()[:, 0].tolist():
                episode = int(self.episode[bad[0]])
                raise ConfigError(f"{name} is not finite in row {bad[0]}, episode {episode}: remove that episode.")

    @property
    def rows(self) -> int:
        return len(self.episode)

    @property
    def count(self) -> int:
        """Number of episodes."""
        return int(self.episode[-1]) + 1

    @property
    def state_there(self) -> Tensor:
        """(128,) bool: slots of the unified vector that the state fills."""
        return slots_there(self.slots)

    def state(self) -> Tensor:
        """(N, len(slots)) float32: what the slots hold, raw."""
        fields = (self.joints, self.gripper, self.eef_pos, self.eef_quat)
        parts = zip(*(field.split(4096) for field in fields), strict=True)  # in parts: each is 128 wide for a moment
        return torch.cat([state_vector(*part)[:, list(self.slots)] for part in parts])


def joined(parts: Sequence[RobotEpisodes]) -> RobotEpisodes:
    """Episodes of several sources one after the other, each with tasks of its own.

    Raises:
        ConfigError: They differ in rate, cameras, or in what their state has.
    """
    first = parts[0]
    for part in parts:
        for name in ("hz", "cameras", "slots"):
            mine, theirs = getattr(part, name), getattr(first, name)
            if mine != theirs:
                raise ConfigError(
                    f"{name} of {part.instructions[0]!r} is {mine}, of {first.instructions[0]!r} it is {theirs}: "
                    "train on them apart, or record them alike."
                )

    def pictures() -> Iterator[Block]:
        begin = 0
        for part in parts:
            for row, seen in part.pictures():
                yield begin + row, seen
            begin += part.rows

    episodes = np.cumsum([0, *(part.count for part in parts)]).tolist()
    tasks = np.cumsum([0, *(len(part.instructions) for part in parts)]).tolist()
    return RobotEpisodes(
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in (*NUMBERS, "gripper")},
        episode=torch.cat([part.episode + begin for part, begin in zip(parts, episodes, strict=False)]),
        task=torch.cat([part.task + begin for part, begin in zip(parts, tasks, strict=False)]),
        instructions=tuple(text for part in parts for text in part.instructions),
        hz=first.hz,
        cameras=first.cameras,
        pictures=pictures,
        fingerprint=hashlib.sha256(" ".join(part.fingerprint for part in parts).encode()).hexdigest(),
        slots=first.slots,
    )


def fingerprint_of(files: Iterable[Path], numbers: Iterable[Tensor]) -> str:
    """Hash of names, sizes and times of files, and of the numbers that were read from them."""
    found = hashlib.sha256()
    for file in files:
        known = file.stat()
        found.update(f"{file.name} {known.st_size} {known.st_mtime_ns}\n".encode())
    for number in numbers:
        found.update(number.contiguous().numpy())
    return found.hexdigest()


def read_episodes(path: Path, limit: int | None = None) -> RobotEpisodes:
    """Reads what is at `path`: LIBERO's or robomimic's HDF5, a LeRobotDataset, or recordings of powerband.

    Args:
        path: A file, or a folder.
        limit: Episodes of each task at most, the first ones; None is all.

    Raises:
        ConfigError: There is nothing of the kind, or it cannot be read; what and why is said.
    """
    if path.suffix in (".hdf5", ".h5") or (path.is_dir() and any(path.glob("*.hdf5"))):
        from powerband.data.libero_hdf5 import read_libero_hdf5

        return read_libero_hdf5(path, limit)
    if (path / "meta" / "info.json").exists():
        from powerband.data.lerobot import read_lerobot

        return read_lerobot(path, limit)
    return read_recordings(path, limit)


def read_recordings(folder: Path, limit: int | None = None) -> RobotEpisodes:
    """Reads recordings of demonstrations; pictures stay on disk until they are asked for.

    Args:
        folder: A recording, or recordings of a task each, which are taken in the order of their names.
        limit: Episodes of each task at most, the first ones; None is all.

    Raises:
        ShardError: There is no recording, it lacks a field or a fact, or a file is damaged; it is named.
    """
    kept = [folder] if _is_recording(folder) else sorted(filter(_is_recording, folder.glob("*/")))
    if not kept:
        raise ShardError(
            f"{folder} holds no episodes: neither recordings of powerband (recording.json or manifest.json, one folder "
            "a task), nor *.hdf5 of LIBERO, nor meta/info.json of a LeRobotDataset."
        )
    return joined([_read_recording(each, limit) for each in kept])


@dataclass(frozen=True)
class _Piece:
    """Rows of one episode that lie together in one file."""

    path: Path
    episode: int
    first: int
    last: int


def _is_recording(folder: Path) -> bool:
    there = (folder / "manifest.json").exists() or (folder / FACTS).exists()
    return there and not folder.name.startswith(".")


def _read_recording(folder: Path, limit: int | None) -> RobotEpisodes:
    packed = (folder / "manifest.json").exists()
    facts = manifest_of(folder)["facts"] if packed else json.loads((folder / FACTS).read_text(encoding="utf-8"))
    if missing := [name for name in ("instruction", "hz") if name not in facts]:
        raise ShardError(f"{folder} says nothing of {missing[0]}, it says {', '.join(facts)}: record it again.")
    numbered = [list(run) for _, run in groupby(_pieces(folder, packed), lambda piece: piece.episode)][:limit]
    pieces = [piece for run in numbered for piece in run]
    if not pieces:
        raise ShardError(f"{folder} holds no finished episode yet.")
    with _opened(pieces[0].path) as file:
        cameras = tuple(camera for camera in CAMERAS if camera in file.keys())  # noqa: SIM118
    wanted = ("joints", "gripper", "eef_pos", "eef_quat", "action")
    read = [_rows(piece, wanted) for piece in pieces]
    numbers = {name: torch.cat([each[name] for each in read]).float() for name in wanted}
    numbers["gripper"] = gripper_opening(numbers["gripper"])
    lengths = torch.tensor([sum(piece.last - piece.first for piece in run) for run in numbered])

    def pictures() -> Iterator[Block]:
        row = 0
        for piece in pieces:
            yield row, {name: seen.numpy() for name, seen in _rows(piece, cameras).items()}
            row += piece.last - piece.first

    return RobotEpisodes(
        **numbers,
        episode=torch.arange(len(lengths)).repeat_interleave(lengths),
        task=torch.zeros(int(lengths.sum()), dtype=torch.int64),
        instructions=(str(facts["instruction"]),),
        hz=float(facts["hz"]),
        cameras=cameras,
        pictures=pictures,
        fingerprint=fingerprint_of(dict.fromkeys(piece.path for piece in pieces), numbers.values()),
    )


def _pieces(folder: Path, packed: bool) -> Iterator[_Piece]:
    """Where each episode's rows lie, in the order of rows."""
    if packed:
        for shard in manifest_of(folder)["shards"]:
            with _opened(folder / shard["file"]) as file:
                numbers, lengths = file.get_tensor("episode").unique_consecutive(return_counts=True)
            ends = lengths.cumsum(0).tolist()
            for number, first, last in zip(numbers.tolist(), [0, *ends], ends, strict=False):
                yield _Piece(folder / shard["file"], number, first, last)
    else:
        for path in sorted((folder / "episodes").glob("*.safetensors")):
            with _opened(path) as file:
                steps = file.get_slice(next(iter(file.keys()))).get_shape()[0]
            yield _Piece(path, int(path.stem), 0, steps)


def _rows(piece: _Piece, names: Sequence[str]) -> dict[str, Tensor]:
    with _opened(piece.path) as file:
        there = list(file.keys())
        if missing := [name for name in names if name not in there]:
            raise ShardError(f"{piece.path} has no field {missing[0]}; it has {', '.join(there)}.")
        return {name: file.get_slice(name)[piece.first : piece.last] for name in names}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ShardError(f"{path} cannot be read ({error}). Remove it, and record its episode again.") from error
