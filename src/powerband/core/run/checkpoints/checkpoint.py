"""Checkpoints: complete, atomic and verified files without pickle.

``checkpoints/<step>/`` contains one shard per rank and one shared shard. Each shard is a ``<shard>.safetensors`` with
tensors and a ``<shard>.json`` with the structure and plain values. ``manifest.json`` contains the size and SHA-256 of
each file, the run and the step. A checkpoint is written to a hidden folder, synced and renamed, so that incomplete
checkpoints are never visible. ``checkpoints/last`` names the newest checkpoint, and ``checkpoints/best`` the best one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.run.checkpoints.checkpoint_marks import BEST, marked_steps, read_mark, remove_mark
from powerband.core.run.checkpoints.manifest import CheckpointError, FileFacts, Manifest, verify_file
from powerband.core.run_folder import find_run, run_id, why_no_checkpoint

TENSOR, ARRAY, NUMBER = "__tensor__", "__array__", "__float__"
STEP = re.compile(r"0|[1-9][0-9]{0,18}")
"""Names of the folders of checkpoints."""


class CheckpointWriter:
    """Writes one checkpoint in two steps: every rank writes its shards, then rank 0 writes the manifest.

    A shard is the part of the state that one rank saves, in two files. The manifest lists the size and hash of each
    file.

    Args:
        run_dir: The run folder.
        step: Global environment steps, which name the checkpoint.
    """

    def __init__(self, run_dir: Path, step: int) -> None:
        self.folder = run_dir / "checkpoints"
        self.step = step
        self.hidden = self.folder / f".saving-{step}"

    def write(self, shard: str, tree: Any) -> dict[str, dict]:
        """Writes one shard into a hidden folder.

        Args:
            shard: Name of the shard, such as rank0.
            tree: Nested dicts and lists of tensors, arrays, numbers and strings.

        Returns:
            File name -> ``size`` in bytes and ``sha256``, for `commit`.

        Raises:
            CheckpointError: The folder cannot be written, or the disk is full. Earlier checkpoints stay valid.
        """
        return self.write_files(pack_shard(shard, tree))

    def write_files(self, contents: Mapping[str, bytes]) -> dict[str, dict]:
        """Writes files into the hidden folder: path inside it -> content. Results and errors are those of `write`."""
        with checkpoint_errors(self.folder):
            facts = {}
            for name, content in contents.items():
                path = self.hidden / name
                path.parent.mkdir(parents=True, exist_ok=True)
                facts[name] = _write_synced(path, content)
            return facts

    def export(self, files: Mapping[str, bytes]) -> None:
        """Adds files for other programs, which a resume does not read and the manifest does not list.

        Args:
            files: Path inside the checkpoint, such as ``ema/model.safetensors`` -> content.

        Raises:
            CheckpointError: The folder cannot be written, or the disk is full. Earlier checkpoints stay valid.
        """
        self.write_files(files)

    def write_manifest(self, files: dict[str, dict], meta: dict[str, int]) -> str:
        """Completes the hidden folder.

        Args:
            files: The results of `write` of all ranks, merged.
            meta: ``world_size`` and further counters.

        Returns:
            SHA-256 of the manifest, which contains the hashes of all files.

        Raises:
            CheckpointError: The folder cannot be written, or a shard is missing in it, for example because another
                rank has written it elsewhere.
        """
        counters = dict(meta)
        world_size = counters.pop("world_size")
        facts = {name: FileFacts(**each) for name, each in files.items()}
        manifest = Manifest(run_id(self.folder.parent), self.step, world_size, counters, facts)
        with checkpoint_errors(self.folder):
            for name, each in facts.items():
                if not (self.hidden / name).is_file() or (self.hidden / name).stat().st_size != each.size:
                    raise CheckpointError(f"{self.hidden} lacks {name}. Earlier checkpoints stay valid.")
            return str(_write_synced(self.hidden / "manifest.json", manifest.to_json())["sha256"])

    def publish(self, keep: int = 2) -> Path:
        """Makes the complete checkpoint visible, updates the file ``last``, and removes old checkpoints without a mark.

        Args:
            keep: Number of newest checkpoints to keep, at least 1.

        Returns:
            Folder of the checkpoint.

        Raises:
            CheckpointError: The folder cannot be written.
        """
        target = self.folder / str(self.step)
        publish(self.hidden, target)
        # A run resumed from an older step has newer checkpoints of its abandoned continuation.
        for path in newer_checkpoints(target):
            shutil.rmtree(path, ignore_errors=True)
        marked = marked_steps(self.folder.parent)
        for path in _checkpoints(self.folder)[max(keep, 1) :]:
            if int(path.name) not in marked:
                shutil.rmtree(path, ignore_errors=True)
        if read_mark(self.folder.parent, BEST) is None:  # it was one of the abandoned continuation
            remove_mark(self.folder.parent, BEST)
        for path in self.folder.glob(".saving-*"):
            shutil.rmtree(path, ignore_errors=True)
        return target


def publish(hidden: Path, target: Path) -> None:
    """Makes a complete checkpoint in a hidden folder visible as `target`, and the file ``last`` name it."""
    folder = target.parent
    with checkpoint_errors(folder):
        if target.exists():  # a resumed run reached the same step again
            shutil.rmtree(target)
        os.replace(hidden, target)
        _sync_folder(folder)
        _write_synced(folder / ".last", f"{target.name}\n".encode())
        os.replace(folder / ".last", folder / "last")
        _sync_folder(folder)


def pack_shard(shard: str, tree: Any) -> dict[str, bytes]:
    """Returns the files of one shard, file name -> content. `tree` is as in `CheckpointWriter.write`."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_pack(tree, tensors, ""))
    return {f"{shard}.safetensors": save(tensors), f"{shard}.json": structure.encode()}


def load_checkpoint(path: Path, shard: str) -> tuple[Any, Manifest]:
    """Reads one shard of a checkpoint, after its files were verified with the sizes and hashes in the manifest.

    Args:
        path: Folder of the checkpoint.
        shard: Name of the shard, the part of the state that one rank saved.

    Returns:
        The saved tree with tensors on the CPU, and the manifest.

    Raises:
        CheckpointError: A file is missing, truncated or changed. The message names the file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    manifest = _own_manifest(path)
    names = (f"{shard}.safetensors", f"{shard}.json")
    for name in names:
        if name not in manifest.files:
            raise CheckpointError(
                f"{path} has no {name}: a run with another number of ranks saved it. Resume with that number."
            )
        verify_file(path / name, manifest.files[name])
    try:
        # Copies of the mapped file are aligned, as new tensors are: products of unaligned ones may round differently.
        tensors = {name: tensor.clone() for name, tensor in load_file(path / names[0]).items()}
        return _unpack(json.loads((path / names[1]).read_bytes()), tensors, ""), manifest
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: {names[0]} cannot be read ({str(error)[:200]}). Use the previous checkpoint."
        ) from error


def verify(path: Path) -> None:
    """Checks every file of the checkpoint in the folder `path` against the sizes and hashes in its manifest.

    Raises:
        CheckpointError: A file is missing, truncated or changed, or another run saved it. The message names the file.
    """
    for name, facts in _own_manifest(path).files.items():
        verify_file(path / name, facts)


def _own_manifest(path: Path) -> Manifest:
    """Reads the manifest of a checkpoint, which must be of the run whose folder contains it."""
    manifest, run_dir = Manifest.read(path), path.parent.parent
    own = run_id(run_dir)
    if manifest.run and not own:
        raise CheckpointError(
            f"{run_dir / 'run.json'} is damaged: it has no id, so it does not show whose checkpoints these are. If "
            f"{path} belongs to this run, repair the file; the id is {manifest.run[:40]}."
        )
    if manifest.run and manifest.run != own:  # manifests of format 1 name no run
        raise CheckpointError(f"{path} belongs to another run, {manifest.run[:40]}. Use the previous checkpoint.")
    return manifest


def newer_checkpoints(path: Path) -> list[Path]:
    """Complete checkpoints of the same run after the checkpoint in the folder `path`, newest first."""
    return [each for each in _checkpoints(path.parent) if int(each.name) > int(path.name)]


def resolve_resume(target: str) -> tuple[Path, list[str]]:
    """Finds the newest undamaged checkpoint of a run, up to the checkpoint that `target` names.

    Args:
        target: A run folder, a checkpoint, any file in either, or ``last`` for the newest run.

    Returns:
        Folder of the checkpoint, and a notice for each newer checkpoint that is damaged.

    Raises:
        CheckpointError: The run has no checkpoint, or all are damaged.
    """
    run_dir = find_run(target)
    folder = run_dir / "checkpoints"
    candidates = _checkpoints(folder)
    if named := _named(target, candidates):
        candidates = [path for path in candidates if int(path.name) <= int(named.name)]
    notices = []
    for path in candidates:
        try:
            verify(path)
        except CheckpointError as error:
            notices.append(f"Checkpoint {path.name} is damaged and was skipped: {error}")
            continue
        return path, notices
    none_left = f"{run_dir} has no undamaged checkpoint. Name another run, or start a new one."
    raise CheckpointError(" ".join([none_left, *notices]) if notices else why_no_checkpoint(run_dir))


def checkpoint_of(target: str) -> Path | None:
    """Folder of the checkpoint that `target` names by this folder or a file in it; None if `target` names a run.

    Raises:
        CheckpointError: The checkpoint is damaged. An earlier one is not used, because `target` names this one.
    """
    named = _named(target, _checkpoints(find_run(target) / "checkpoints"))
    if named is not None:
        verify(named)
    return named


def export_policy(run_dir: Path, config: dict, tensors: dict[str, Tensor]) -> Path:
    """Writes the policy to ``policy/`` in the run folder, so that it can be loaded without powerband.

    Args:
        run_dir: The run folder.
        config: JSON values for ``policy/config.json``.
        tensors: Name -> weight, for ``policy/model.safetensors``.

    Returns:
        The folder ``policy``.
    """
    from safetensors.torch import save

    folder = run_dir / "policy"
    with checkpoint_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        _write_synced(folder / "model.safetensors.new", save(copies))
        os.replace(folder / "model.safetensors.new", folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def _named(target: str, checkpoints: list[Path]) -> Path | None:
    """The checkpoint that is `target` or contains it; None if no checkpoint does."""
    inside = Path(target).expanduser().absolute()
    return next((path for path in checkpoints if path.absolute() in (inside, *inside.parents)), None)


def _checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, newest first. Whatever else has the name of one is found to be damaged."""
    folders = [path for path in folder.glob("*") if STEP.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(folders, key=lambda path: int(path.name), reverse=True)


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
def checkpoint_errors(folder: Path) -> Iterator[None]:
    """Turns an error of the disk with `folder` into a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written: {error.strerror or error}. Earlier checkpoints stay valid. Free some space, "
            f"correct the permissions, or choose another run_dir; then resume."
        ) from error


def _pack(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """`value` as JSON values. Its tensors and arrays are added to `tensors` under paths that begin with `path`."""
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value), f"{path}: keys of a saved dict must be strings"
        return {key: _pack(item, tensors, f"{path}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(item, tensors, f"{path}/{index}") for index, item in enumerate(value)]
    if isinstance(value, Tensor):
        # Copied, because safetensors refuses tensors that share memory, such as views of a flat tensor.
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()
        return {TENSOR: path}
    if isinstance(value, np.ndarray):
        tensors[path] = torch.from_numpy(np.array(value, order="C"))
        return {ARRAY: path}
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{path}: a checkpoint cannot store {type(value).__name__}. Use tensors, numbers, strings, lists or dicts."
    )


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
