"""Recordings: episodes of any length, each a file as soon as it is finished, packed into shards when all are.

A process that is killed loses the episodes under way and no other. A folder holds ``recording.json`` (facts that all
episodes share) and ``episodes/<number>.safetensors``, whose tensors all have the steps as their first axis; packed, it
holds shards (see `data.shards`) with the field ``episode``, the number of each row's episode. Nothing in it is code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.data.shards import ShardError, manifest_of, read_shards, write_shards

FACTS = "recording.json"


class Recording:
    """A folder that episodes are added to.

    Args:
        folder: Made where it is not there; a recording of the same facts is gone on with.
        facts: JSON values: what the episodes were recorded from.

    Raises:
        ShardError: It holds a recording of something else, or is packed already.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self.facts = folder, json.loads(json.dumps(facts))
        if (folder / "manifest.json").exists():
            raise ShardError(f"{folder} is a whole recording already. Name another folder, or remove it.")
        known = folder / FACTS
        if known.exists():
            there = json.loads(known.read_text(encoding="utf-8"))
            other = [name for name in {*there, *self.facts} if there.get(name) != self.facts.get(name)]
            if other:
                raise ShardError(
                    f"{folder} holds episodes recorded with {other[0]}={there.get(other[0])}, these have "
                    f"{other[0]}={self.facts.get(other[0])}. Name another folder, or remove it."
                )
        (folder / "episodes").mkdir(parents=True, exist_ok=True)
        _written(known, json.dumps(self.facts, indent=1).encode())

    @property
    def numbers(self) -> list[int]:
        """Numbers of the episodes that are there, lowest first."""
        return sorted(int(path.stem) for path in (self.folder / "episodes").glob("*.safetensors"))

    def add(self, number: int, fields: dict[str, Tensor]) -> None:
        """Writes a finished episode; when this returns it survives a crash.

        Args:
            number: 0 or more, of its own.
            fields: Name -> (steps, ...).

        Raises:
            ShardError: The disk is full, or the folder cannot be written.
        """
        from safetensors.torch import save

        assert len({len(value) for value in fields.values()}) == 1, {name: len(v) for name, v in fields.items()}
        data = save({name: value.cpu().contiguous() for name, value in fields.items()})
        _written(self.folder / "episodes" / f"{number:08d}.safetensors", data)

    def pack(self) -> Path:
        """Joins the episodes to shards in place of their files; returns the folder."""
        fields, _ = read_recording(self.folder)
        return write_shards(self.folder, fields, self.facts)


def read_recording(folder: Path, names: tuple[str, ...] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All rows, packed or not, and the facts; ``episode`` (rows,) int64 is the number of each row's episode.

    Args:
        folder: Of the recording.
        names: Fields that are wanted; None is all.

    Raises:
        ShardError: There is no recording, none of its episodes is finished, it has no such field, or a file is
            damaged; it is named.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if (folder / "manifest.json").exists():
        return read_shards(folder, names), manifest_of(folder)["facts"]
    if not (folder / FACTS).exists():
        raise ShardError(f"{folder} holds no recording: neither manifest.json nor {FACTS} is there.")
    parts: dict[str, list[Tensor]] = {}
    for path in sorted((folder / "episodes").glob("*.safetensors")):
        try:
            fields = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ShardError(f"{path} cannot be read ({error}). Remove it, and record its episode again.") from error
        steps = len(next(iter(fields.values())))
        fields["episode"] = torch.full((steps,), int(path.stem))
        if missing := [name for name in names or () if name not in fields]:
            raise ShardError(f"{path} has no field {missing[0]}; it has {', '.join(fields)}.")
        for name in names or fields:
            parts.setdefault(name, []).append(fields[name])
    if not parts:
        raise ShardError(f"{folder} holds no finished episode yet.")
    return {name: torch.cat(values) for name, values in parts.items()}, json.loads((folder / FACTS).read_text())


def _written(path: Path, data: bytes) -> None:
    """Writes beside `path` and renames: it is whole or not there."""
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise ShardError(f"{path} cannot be written: {error.strerror or error}. Free space there, or move.") from error
