"""Shards: rows of named tensors as safetensors files with a manifest, readable without powerband.

A folder holds ``<name>.safetensors``, whose tensors all have the same first axis, and ``manifest.json``: the format's
number, ``rows``, ``fields`` (name -> dtype, shape of a row), ``shards`` (file, rows, sha256, in order) and ``facts``
(whatever is worth knowing about the rows). It is written beside its place and renamed, so it is whole or not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.core.flags import ConfigError

FORMAT = 1
ROWS = 262_144
"""Rows of a file at most."""


class ShardError(ConfigError):
    """Data that cannot be read or written: what, where, and what to do."""


def write_shards(
    folder: Path,
    fields: dict[str, Tensor],
    facts: dict[str, Any],
    gather: Callable[[Any], list[Any]] = lambda mine: [mine],
    rank: int = 0,
) -> Path:
    """Writes the rows of all ranks in place of what `folder` held. A collective.

    Args:
        folder: Where they are to lie.
        fields: Name -> (rows, ...) of this rank; the same names on all.
        facts: JSON values for the manifest.
        gather: Gives what every rank handed it, in the order of ranks.
        rank: This rank.

    Raises:
        ShardError: The disk is full, or the folder cannot be written.
    """
    from safetensors.torch import save

    rows = len(next(iter(fields.values())))
    assert all(len(tensor) == rows for tensor in fields.values()), {name: len(t) for name, t in fields.items()}
    hidden = folder.parent / f".{folder.name}.writing"
    try:
        if rank == 0:
            shutil.rmtree(hidden, ignore_errors=True)
            hidden.mkdir(parents=True)
        gather(None)
        shards = []
        for number, first in enumerate(range(0, rows, ROWS)):
            part = {name: tensor[first : first + ROWS].cpu().contiguous() for name, tensor in fields.items()}
            data, file = save(part), f"rank{rank}-{number:05d}.safetensors"
            _synced(hidden / file, data)
            shards.append({"file": file, "rows": min(ROWS, rows - first), "sha256": hashlib.sha256(data).hexdigest()})
        every = [shard for own in gather(shards) for shard in own]
        if rank == 0:
            manifest = {
                "format": FORMAT,
                "rows": sum(shard["rows"] for shard in every),
                "fields": {
                    name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape[1:])}
                    for name, tensor in fields.items()
                },
                "shards": every,
                "facts": facts,
            }
            _synced(hidden / "manifest.json", json.dumps(manifest, indent=1).encode())
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(hidden, folder)
        gather(None)
    except OSError as error:
        raise ShardError(
            f"{folder} cannot be written: {error.strerror or error}. Free space there, or move."
        ) from error
    return folder


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of shards.

    Raises:
        ShardError: There is none, or it is of another format.
    """
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShardError(f"{path} cannot be read ({error}): make these data again.") from error
    if manifest.get("format") != FORMAT:
        raise ShardError(f"{path} has format {manifest.get('format')}, this version reads {FORMAT}.")
    return manifest


def read_shards(folder: Path, names: Iterable[str] | None = None, verify: bool = True) -> dict[str, Tensor]:
    """Rows of a folder in the order of its manifest.

    Args:
        folder: Holds a manifest.
        names: Fields that are wanted; None is all.
        verify: Compare each file with its hash.

    Raises:
        ShardError: A file is missing, cut or changed, or a field is not there; it is named.
    """
    from safetensors.torch import load

    manifest = manifest_of(folder)
    names = list(manifest["fields"] if names is None else names)
    if missing := [name for name in names if name not in manifest["fields"]]:
        raise ShardError(f"{folder} has no field {missing[0]}; it has {', '.join(manifest['fields'])}.")
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    for shard in manifest["shards"]:
        path = folder / shard["file"]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ShardError(f"{path} cannot be read ({error.strerror}): make these data again.") from error
        if verify and hashlib.sha256(data).hexdigest() != shard["sha256"]:
            raise ShardError(f"{path} has changed since it was written: make these data again.")
        tensors = load(data)
        for name in names:
            parts[name].append(tensors[name])
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


def _synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
