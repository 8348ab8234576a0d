"""Recording: a folder of episodes of any length, each written when it is finished, and packed into shards at the end.

A process that is killed loses only its unfinished episodes. The folder holds ``recording.json`` (facts that all
episodes share) and ``episodes/<number>.safetensors``, in which the first axis of all tensors is the step. After
packing, it holds shards (see `shards`) with the additional field ``episode``, the number of each row's episode. No file
contains code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.data.recorded.shards import ShardError, read_manifest, read_shards, write_shards

FACTS_FILE = "recording.json"
_RECORD_AGAIN = "Remove this file, then repeat the command that recorded it; other finished episodes are kept."


class Recording:
    """Writer of a recording, a folder to which finished episodes are added one by one.

    Args:
        folder: Folder of the recording. It is created; an existing recording with the same `facts` is continued.
        facts: JSON values that describe all episodes, such as the task and the control frequency.

    Raises:
        ShardError: The folder has a recording with other `facts`, or is packed already.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self.facts = folder, json.loads(json.dumps(facts))
        if (folder / "manifest.json").exists():
            raise ShardError(
                f"{folder} is a finished recording: no episode can be added. Name another folder, or remove this one."
            )
        path = folder / FACTS_FILE
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            different = [name for name in {*stored, *self.facts} if stored.get(name) != self.facts.get(name)]
            if different:
                name = different[0]
                raise ShardError(
                    f"{folder} has episodes recorded with {name}={stored.get(name)}, but the new ones have "
                    f"{name}={self.facts.get(name)}. Name another folder, or remove this one."
                )
        (folder / "episodes").mkdir(parents=True, exist_ok=True)
        _write_atomically(path, json.dumps(self.facts, indent=1).encode())

    @property
    def numbers(self) -> list[int]:
        """Numbers of the finished episodes, in ascending order."""
        return sorted(int(path.stem) for path in (self.folder / "episodes").glob("*.safetensors"))

    def add(self, number: int, fields: dict[str, Tensor]) -> None:
        """Writes a finished episode to disk, and returns when it is safe there.

        Args:
            number: Number of the episode, from 0; an episode with the same number is replaced.
            fields: Name -> tensor (steps, ...), with the same number of steps in all fields.

        Raises:
            ShardError: The disk is full, or the folder cannot be written.
        """
        from safetensors.torch import save

        assert len({len(value) for value in fields.values()}) == 1, {name: len(v) for name, v in fields.items()}
        data = save({name: value.cpu().contiguous() for name, value in fields.items()})
        _write_atomically(self.folder / "episodes" / f"{number:08d}.safetensors", data)

    def pack(self) -> Path:
        """Replaces the files of single episodes with shards, files that hold many episodes, and returns the folder.

        Raises:
            ShardError: There is no finished episode, a file is damaged, or the folder cannot be written.
        """
        fields, _ = read_recording(self.folder)
        return write_shards(self.folder, fields, self.facts)


def read_recording(folder: Path, names: tuple[str, ...] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads all episodes of a recording, packed or not.

    Args:
        folder: Folder of the recording.
        names: Names of the fields to read; None reads all.

    Returns:
        The fields, name -> tensor (rows, ...) with one row per step; and the JSON values that describe all episodes.
        The field ``episode`` (rows,) int64 is the number of each row's episode.

    Raises:
        ShardError: The folder has no recording or no finished episode, a field is missing, or a file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    facts = read_facts(folder)
    if (folder / "manifest.json").exists():
        return read_shards(folder, names), facts
    parts: dict[str, list[Tensor]] = {}
    for path in sorted((folder / "episodes").glob("*.safetensors")):
        try:
            fields = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ShardError(f"{path} cannot be read ({error}). {_RECORD_AGAIN}") from error
        steps = len(next(iter(fields.values())))
        fields["episode"] = torch.full((steps,), int(path.stem))
        if missing := [name for name in names or () if name not in fields]:
            raise ShardError(f"{path} has no field {missing[0]}; it has {', '.join(fields)}. {_RECORD_AGAIN}")
        for name in names or fields:
            parts.setdefault(name, []).append(fields[name])
    if not parts:
        raise ShardError(f"{folder} has no finished episode. Record at least one with the stage demos.")
    return {name: torch.cat(values) for name, values in parts.items()}, facts


def read_facts(folder: Path) -> dict[str, Any]:
    """Reads the JSON values that describe all episodes of a recording, packed or not.

    Raises:
        ShardError: The folder has no recording, or its manifest is damaged.
    """
    if (folder / "manifest.json").exists():
        return read_manifest(folder)["facts"]
    if not (folder / FACTS_FILE).exists():
        raise ShardError(f"{folder} has no recording: neither manifest.json nor {FACTS_FILE}. Name another folder.")
    return json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))


def _write_atomically(path: Path, data: bytes) -> None:
    """Writes a temporary file and renames it, so that `path` is complete or absent."""
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise ShardError(
            f"{path} cannot be written: {error.strerror or error}. Free space, or name another folder."
        ) from error
