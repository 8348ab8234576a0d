"""CheckpointWriter: writes a checkpoint, and makes it visible once it is complete."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from powerband.core.regular_files import replace_text
from powerband.core.run.checkpoints.checkpoint import checkpoints_in, newer_checkpoints
from powerband.core.run.checkpoints.checkpoint_marks import BEST, marked_steps, read_mark, read_marks, remove_mark
from powerband.core.run.checkpoints.manifest import CheckpointError, FileFacts, Manifest
from powerband.core.run.checkpoints.shard import save_shard
from powerband.core.run_folder import run_id


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
        with checkpoint_errors(self.folder):
            self.hidden.mkdir(parents=True, exist_ok=True)
            return {path.name: _synced_facts(path) for path in save_shard(self.hidden, shard, tree)}

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
        replaced = target.exists()
        # A run resumed from an older step has newer checkpoints of its abandoned continuation. They are hidden before
        # the new one is visible, so that the newest visible one is the right one whenever this process is killed.
        with checkpoint_errors(self.folder):
            for path in newer_checkpoints(target):
                hidden = self.folder / f".saving-{path.name}"
                shutil.rmtree(hidden, ignore_errors=True)
                os.replace(path, hidden)
        make_visible(self.hidden, target)
        if replaced:  # the marks of this step are those of an abandoned continuation
            for name, mark in read_marks(self.folder.parent).items():
                if mark.step == self.step:
                    remove_mark(self.folder.parent, name)
        marked = marked_steps(self.folder.parent)
        for path in checkpoints_in(self.folder)[max(keep, 1) :]:
            if int(path.name) not in marked:
                shutil.rmtree(path, ignore_errors=True)
        if read_mark(self.folder.parent, BEST) is None:  # it was one of the abandoned continuation
            remove_mark(self.folder.parent, BEST)
        for path in self.folder.glob(".saving-*"):
            shutil.rmtree(path, ignore_errors=True)
        return target


def make_visible(hidden: Path, target: Path) -> None:
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
        replace_text(folder / "config.json", json.dumps(config, indent=2))
    return folder


def _write_synced(path: Path, data: bytes) -> dict:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _synced_facts(path: Path) -> dict:
    """Waits until a file is on the disk, and returns its size and hash."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


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
