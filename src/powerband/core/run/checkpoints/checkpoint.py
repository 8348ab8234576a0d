"""Checkpoints: complete, atomic and verified files without pickle.

``checkpoints/<step>/`` contains one shard per rank and one shared shard. Each shard is a ``<shard>.safetensors`` with
tensors and a ``<shard>.json`` with the structure and plain values. ``manifest.json`` contains the size and SHA-256 of
each file, the run and the step. A checkpoint is written to a hidden folder, synced and renamed, so that incomplete
checkpoints are never visible. ``checkpoints/last`` names the newest checkpoint, and ``checkpoints/best`` the best one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from powerband.core.run.checkpoints.manifest import CheckpointError, Manifest, verify_file
from powerband.core.run.checkpoints.shard import unpack_shard
from powerband.core.run_folder import find_run, run_id, why_no_checkpoint

STEP = re.compile(r"0|[1-9][0-9]{0,18}")
"""Names of the folders of checkpoints."""


def load_checkpoint(path: Path, shard: str, mapped: bool = False) -> tuple[Any, Manifest]:
    """Reads one shard of a checkpoint, after its files were verified with the sizes and hashes in the manifest.

    Args:
        path: Folder of the checkpoint.
        shard: Name of the shard, the part of the state that one rank saved.
        mapped: Returns tensors that take no memory, because they are mapped from the file. They may be read only;
            `in_memory` copies them.

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
        tree = unpack_shard((path / names[1]).read_bytes(), load_file(path / names[0]))
        return tree if mapped else in_memory(tree), manifest
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {names[0]} cannot be read ({str(error)[:200]}).") from error


def in_memory(tree: Any) -> Any:
    """Copies the mapped tensors and arrays of a tree.

    Copies are aligned, as new tensors are; products of unaligned ones may round differently.
    """
    if isinstance(tree, dict):
        return {key: in_memory(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [in_memory(item) for item in tree]
    if isinstance(tree, Tensor):
        return tree.clone()
    return tree.copy() if isinstance(tree, np.ndarray) else tree


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
        raise CheckpointError(f"{path} belongs to another run, {manifest.run[:40]}.")
    return manifest


def newer_checkpoints(path: Path) -> list[Path]:
    """Complete checkpoints of the same run after the checkpoint in the folder `path`, newest first."""
    return [each for each in checkpoints_in(path.parent) if int(each.name) > int(path.name)]


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
    candidates = checkpoints_in(run_dir / "checkpoints")
    named = _named(target, candidates)
    if named is not None:
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
    named = _named(target, checkpoints_in(find_run(target) / "checkpoints"))
    if named is not None:
        try:
            verify(named)
        except CheckpointError as error:
            run_dir = named.parent.parent
            raise CheckpointError(
                f"{error} Name another checkpoint of the run, or {run_dir} for the newest undamaged one."
            ) from error
    return named


def _named(target: str, checkpoints: list[Path]) -> Path | None:
    """The checkpoint that is `target` or contains it; None if no checkpoint does."""
    inside = Path(target).expanduser().absolute()
    return next((path for path in checkpoints if path.absolute() in (inside, *inside.parents)), None)


def checkpoints_in(folder: Path) -> list[Path]:
    """Complete checkpoints in the folder ``checkpoints`` of a run, newest first. Damaged ones are not left out."""
    folders = [path for path in folder.glob("*") if STEP.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(folders, key=lambda path: int(path.name), reverse=True)
