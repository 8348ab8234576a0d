"""Whole-state checkpoints: atomic, verified, without pickle.

``checkpoints/<step>/`` holds for each shard (one a rank, one that is shared) ``<shard>.safetensors`` with its tensors
and ``<shard>.json`` with its structure and plain values, and ``manifest.json`` with the size and SHA-256 of each file.
A checkpoint is written into a hidden folder, synced and renamed, so that it is there whole or not at all;
``checkpoints/last`` names the newest one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.run_folder import find_run

FORMAT = 1
TENSOR, ARRAY, NUMBER = "__tensor__", "__array__", "__float__"


class CheckpointError(ConfigError):
    """A checkpoint that cannot be written or trusted: what, where, and what to do."""


class CheckpointWriter:
    """Writes one checkpoint in two steps: every rank its shards, then the leading rank the manifest.

    Args:
        run_dir: The run folder.
        step: Names the checkpoint: global environment steps.
    """

    def __init__(self, run_dir: Path, step: int) -> None:
        self.folder = run_dir / "checkpoints"
        self.step = step
        self.hidden = self.folder / f".saving-{step}"

    def write(self, shard: str, tree: Any) -> dict[str, dict]:
        """Writes one shard into the hidden folder.

        Returns:
            File name -> size and hash, for `commit`.

        Raises:
            CheckpointError: The folder cannot be written, or the disk is full; earlier checkpoints are untouched.
        """
        from safetensors.torch import save

        tensors: dict[str, Tensor] = {}
        structure = json.dumps(_pack(tree, tensors, ""))
        with _explained(self.folder):
            self.hidden.mkdir(parents=True, exist_ok=True)
            contents = {f"{shard}.safetensors": save(tensors), f"{shard}.json": structure.encode()}
            return {name: _write_synced(self.hidden / name, data) for name, data in contents.items()}

    def commit(self, files: dict[str, dict], meta: dict, keep: int = 2) -> Path:
        """Makes the checkpoint visible, points `last` at it and removes what is older than the `keep` newest.

        Args:
            files: What `write` returned, of all shards.
            meta: JSON values that `load_checkpoint` returns.
            keep: Checkpoints kept, at least 1.
        """
        target = self.folder / str(self.step)
        with _explained(self.folder):
            manifest = {"format": FORMAT, "step": self.step, "meta": meta, "files": files}
            _write_synced(self.hidden / "manifest.json", json.dumps(manifest, indent=1).encode())
            if target.exists():  # the same step again, after a resume: what is there gives way to what is new
                shutil.rmtree(target)
            os.replace(self.hidden, target)
            _sync_folder(self.folder)
            _write_synced(self.folder / ".last", f"{self.step}\n".encode())
            os.replace(self.folder / ".last", self.folder / "last")
            _sync_folder(self.folder)
        # A run that was resumed from an older step leaves newer ones behind: they belong to a future that is undone.
        for path in _checkpoints(self.folder):
            if int(path.name) > self.step:
                shutil.rmtree(path, ignore_errors=True)
        for path in _checkpoints(self.folder)[max(keep, 1) :]:
            shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob(".saving-*"):
            shutil.rmtree(path, ignore_errors=True)
        return target


def load_checkpoint(path: Path, shard: str) -> tuple[Any, dict]:
    """Reads one shard, after the sizes and hashes of its files were found to be those of the manifest.

    Args:
        path: Folder of the checkpoint.
        shard: Name of the shard.

    Returns:
        The tree as it was saved, tensors on the CPU, and the meta values.

    Raises:
        CheckpointError: A file is missing, cut or changed; it is named.
    """
    from safetensors.torch import load

    manifest = _manifest(path)
    names = (f"{shard}.safetensors", f"{shard}.json")
    if missing := [name for name in names if name not in manifest["files"]]:
        raise CheckpointError(f"{path} has no {missing[0]}: it was saved by another number of ranks.")
    data = [_verified(path / name, manifest["files"][name]) for name in names]
    return _unpack(json.loads(data[1]), load(data[0]), ""), manifest["meta"]


def verify(path: Path) -> None:
    """Checks every file of a checkpoint against its manifest.

    Raises:
        CheckpointError: A file is missing, cut or changed; it is named.
    """
    for name, facts in _manifest(path)["files"].items():
        _verified(path / name, facts)


def resolve_resume(word: str) -> tuple[Path, list[str]]:
    """The newest checkpoint that can be trusted, of the run or checkpoint that `word` names.

    Args:
        word: A run folder, a checkpoint, any file in either, or ``last`` for the newest run.

    Returns:
        Folder of the checkpoint, and a notice for each newer one that is damaged.

    Raises:
        CheckpointError: There is no checkpoint, or none can be trusted.
    """
    run_dir = find_run(word)
    folder = run_dir / "checkpoints"
    candidates = _checkpoints(folder)
    if named := _named(word, candidates):
        candidates = [path for path in candidates if int(path.name) <= int(named.name)]
    notices = []
    for path in candidates:
        try:
            verify(path)
        except CheckpointError as error:
            notices.append(f"checkpoint {path.name} is damaged and left out: {error}")
            continue
        return path, notices
    raise CheckpointError(" ".join([f"{run_dir} has no checkpoint to go on from.", *notices]))


def checkpoint_of(word: str) -> Path | None:
    """The checkpoint that `word` names by its folder or a file in it; None where it names a whole run.

    Raises:
        CheckpointError: It is damaged: whoever names one checkpoint does not mean another.
    """
    named = _named(word, _checkpoints(find_run(word) / "checkpoints"))
    if named is not None:
        verify(named)
    return named


def export_policy(run_dir: Path, config: dict, tensors: dict[str, Tensor]) -> Path:
    """Writes ``policy/`` (config.json, model.safetensors), which loads with safetensors and torch alone."""
    from safetensors.torch import save

    folder = run_dir / "policy"
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        _write_synced(folder / "model.safetensors.new", save(own))
        os.replace(folder / "model.safetensors.new", folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def _named(word: str, checkpoints: list[Path]) -> Path | None:
    """The one of `checkpoints` that `word` is, or lies in."""
    inside = Path(word).expanduser().absolute()
    return next((path for path in checkpoints if path.absolute() in (inside, *inside.parents)), None)


def _checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    found = [path for path in folder.glob("*") if path.name.isdigit() and path.is_dir()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def _manifest(path: Path) -> dict:
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] == FORMAT:
            return manifest
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path / 'manifest.json'} cannot be read ({error}): use the checkpoint before it."
        ) from error
    raise CheckpointError(f"{path} has format {manifest['format']}, this version reads {FORMAT}.")


def _verified(path: Path, facts: dict) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): use the checkpoint before it.") from error
    if len(data) != facts["size"]:
        raise CheckpointError(
            f"{path} has {len(data)} bytes and was saved with {facts['size']}: use the checkpoint before it."
        )
    digest = hashlib.sha256(data).hexdigest()
    if digest != facts["sha256"]:
        raise CheckpointError(
            f"{path} has changed since it was saved (SHA-256 {digest[:12]}..., saved as {facts['sha256'][:12]}...): "
            f"use the checkpoint before it."
        )
    return data


def _write_synced(path: Path, data: bytes) -> dict:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written: {error.strerror or error}. Earlier checkpoints are untouched. "
            f"Free space or permissions there, or choose another run_dir; then resume."
        ) from error


def _pack(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """`value` as JSON; tensors and arrays go to `tensors` under their path."""
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value), f"{path}: keys of a saved dict are strings"
        return {key: _pack(item, tensors, f"{path}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(item, tensors, f"{path}/{index}") for index, item in enumerate(value)]
    if isinstance(value, Tensor):
        # A copy: parts of one flat tensor share memory, which the file format refuses.
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()
        return {TENSOR: path}
    if isinstance(value, np.ndarray):
        tensors[path] = torch.from_numpy(np.array(value, order="C"))
        return {ARRAY: path}
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{path}: {type(value).__name__} has no form in a checkpoint")


def _unpack(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors, path) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[value[TENSOR]]
    if ARRAY in value:
        return tensors[value[ARRAY]].numpy()
    if NUMBER in value:
        return float(value[NUMBER])
    return {key: _unpack(item, tensors, path) for key, item in value.items()}
