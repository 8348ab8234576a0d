"""Shards: rows of named tensors in safetensors files with a manifest, readable without powerband.

A folder holds ``<name>.safetensors``, whose tensors all have the same first axis, and ``manifest.json``: the format
number, ``rows``, ``fields`` (name -> dtype, shape of a row), ``shards`` (file, rows, sha256, in order) and ``facts``
(JSON values about the rows). The folder is written under a hidden name and renamed, so that it is complete or absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from powerband.core.errors import ConfigError

T = TypeVar("T")
FORMAT = 1
ROWS_PER_SHARD = 262_144
"""Largest number of rows per file."""


class ShardError(ConfigError):
    """Data cannot be read or written; the message names the file and the fix."""


def _write_again(folder: Path) -> str:
    return f"Remove {folder}, then repeat the command that wrote it."


def write_shards(
    folder: Path,
    fields: dict[str, Tensor],
    facts: dict[str, Any],
    gather: Callable[[Any], list[Any]] = lambda mine: [mine],
    rank: int = 0,
) -> Path:
    """Writes named tensors as shards (safetensors files with a manifest), in place of the content of `folder`.

    The folder then holds the rows of all ranks (processes of the training). All ranks must call this function together.

    Args:
        folder: Folder of the shards.
        fields: Name -> tensor (rows, ...) of this rank; all ranks have the same names.
        facts: JSON values about the rows, stored in the manifest.
        gather: Function that all ranks call together; it returns the arguments of all ranks, in rank order. The default
            is for a single rank.
        rank: Index of this rank.

    Returns:
        The folder.

    Raises:
        ShardError: The disk of some rank is full, or the folder cannot be written; raised on all ranks.
    """
    from safetensors.torch import save

    rows = len(next(iter(fields.values())))
    assert all(len(tensor) == rows for tensor in fields.values()), {name: len(t) for name, t in fields.items()}
    partial = folder.parent / f".{folder.name}.writing"

    def create() -> None:
        if rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)

    def write() -> list[dict[str, Any]]:
        shards = []
        for number, first in enumerate(range(0, rows, ROWS_PER_SHARD)):
            part = {name: tensor[first : first + ROWS_PER_SHARD].cpu().contiguous() for name, tensor in fields.items()}
            data, file = save(part), f"rank{rank}-{number:05d}.safetensors"
            _write_synced(partial / file, data)
            shards.append(
                {"file": file, "rows": min(ROWS_PER_SHARD, rows - first), "sha256": hashlib.sha256(data).hexdigest()}
            )
        return shards

    def publish() -> None:
        if rank == 0:
            _write_synced(partial / "manifest.json", json.dumps(manifest, indent=1).encode())
            replace_folder(partial, folder)

    _on_all_ranks(create, gather, folder)
    all_shards = [shard for shards in _on_all_ranks(write, gather, folder) for shard in shards]
    manifest = {
        "format": FORMAT,
        "rows": sum(shard["rows"] for shard in all_shards),
        "fields": {
            name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape[1:])}
            for name, tensor in fields.items()
        },
        "shards": all_shards,
        "facts": facts,
    }
    _on_all_ranks(publish, gather, folder)
    return folder


def replace_folder(new: Path, folder: Path) -> None:
    """Replaces `folder` by the complete folder `new`; the old content is deleted only afterwards.

    A process that is killed in between leaves the old content in the same parent folder, as ``.NAME.old``.
    """
    old = folder.parent / f".{folder.name}.old"
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)


def _on_all_ranks(write: Callable[[], T], gather: Callable[[Any], list[Any]], folder: Path) -> list[T]:
    """Calls `write` on each rank and returns the results of all. An error on one rank ends the others too.

    Raises:
        ShardError: The `folder` cannot be written on some rank; raised on all ranks.
    """
    result, problem = None, ""
    try:
        result = write()
    except OSError as error:
        problem = error.strerror or str(error)
    answers = gather((result, problem))
    if problem := next((problem for _, problem in answers if problem), ""):
        raise ShardError(f"{folder} cannot be written: {problem}. Free space, or name another folder.")
    return [result for result, _ in answers]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads ``manifest.json`` of a folder of shards.

    Returns:
        Its JSON values: ``format``, ``rows``, ``fields`` (name -> dtype and shape of a row), ``shards`` (file, rows,
        sha256) and ``facts`` (values about the rows).

    Raises:
        ShardError: The manifest is missing or damaged, or has another format.
    """
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShardError(f"{path} cannot be read ({error}). {_write_again(folder)}") from error
    if manifest.get("format") != FORMAT:
        raise ShardError(
            f"{path} has format {manifest.get('format')}, but this version reads {FORMAT}. {_write_again(folder)}"
        )
    return manifest


def read_shards(folder: Path, names: Iterable[str] | None = None, verify: bool = True) -> dict[str, Tensor]:
    """Reads the tensors in a folder of shards.

    Args:
        folder: Folder with a manifest.
        names: Names of the fields to read; None reads all.
        verify: Compare each file with its hash in the manifest.

    Returns:
        Name -> tensor (rows, ...), with the rows of all files in the order of the manifest.

    Raises:
        ShardError: A file is missing, truncated or changed, or a field is missing.
    """
    from safetensors.torch import load

    manifest = read_manifest(folder)
    names = list(manifest["fields"] if names is None else names)
    if missing := [name for name in names if name not in manifest["fields"]]:
        raise ShardError(
            f"{folder} has no field {missing[0]}; it has {', '.join(manifest['fields'])}. {_write_again(folder)}"
        )
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    for shard in manifest["shards"]:
        path = folder / shard["file"]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ShardError(f"{path} cannot be read ({error.strerror}). {_write_again(folder)}") from error
        if verify and hashlib.sha256(data).hexdigest() != shard["sha256"]:
            raise ShardError(f"{path} has changed since it was written. {_write_again(folder)}")
        tensors = load(data)
        for name in names:
            parts[name].append(tensors[name])
    return {name: torch.cat(tensors) for name, tensors in parts.items()}


def _write_synced(path: Path, data: bytes) -> None:
    """Writes a file and flushes it to disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
