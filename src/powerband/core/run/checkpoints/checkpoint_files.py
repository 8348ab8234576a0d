"""Checkpoint files: brings the parts of a checkpoint to the machines that keep it, and whole ones to those without."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from powerband.core.ranks.ranks import Ranks
from powerband.core.run.checkpoints.checkpoint import newer_checkpoints, resolve_resume, verify
from powerband.core.run.checkpoints.checkpoint_marks import Mark, read_marks, write_mark
from powerband.core.run.checkpoints.checkpoint_writer import CheckpointWriter, checkpoint_errors, make_visible
from powerband.core.run.checkpoints.manifest import CheckpointError, FileFacts, Manifest
from powerband.core.run.checkpoints.shard import pack_shard
from powerband.core.run.folders.storage import RECEIVED, Storage

CHUNK = 16 * 2**20
"""Bytes of one message between two ranks."""
MANIFEST = "manifest.json"


class CollectiveSave:
    """One checkpoint while all ranks write it. All of them make the same calls.

    Args:
        storage: Folders of the ranks.
        step: Global environment steps, which name the checkpoint.
    """

    def __init__(self, storage: Storage, step: int) -> None:
        self.storage, self.ranks, self.step = storage, storage.ranks, step
        self.writer = CheckpointWriter(storage.folder, step)
        self._facts: dict[str, dict] = {}
        self._exported: dict[str, dict] = {}
        self._contents: dict[str, bytes] = {}

    def add(self, shard: str, tree: Any) -> None:
        """Adds a shard of this rank, see `CheckpointWriter.write`."""
        keeps = self.storage.keeps
        self._facts |= self.writer.write(shard, tree) if keeps else self._hold(pack_shard(shard, tree))

    def export(self, files: Mapping[str, bytes]) -> None:
        """Adds files for other programs, see `CheckpointWriter.export`."""
        self._exported = self.writer.write_files(files) if self.storage.keeps else self._hold(files)

    def commit(self, counters: dict[str, int], keep: int) -> None:
        """Completes the checkpoint on all machines that keep it.

        Args:
            counters: Counters for the manifest.
            keep: Number of newest checkpoints to keep.

        Raises:
            CheckpointError: A machine cannot write it, or has received something else than was sent.
        """
        ranks, keeps = self.ranks, self.ranks.rank in self.storage.keepers
        marks = read_marks(self.storage.folder) if ranks.leads else {}
        every = ranks.gather([self._facts, self._exported, {name: asdict(mark) for name, mark in marks.items()}])
        if self.storage.has_private_folders:
            self._distribute([facts | exported for facts, exported, _ in every])
        digest = ""
        if keeps:
            files = {name: each for facts, _, _ in every for name, each in facts.items()}
            digest = self.writer.write_manifest(files, {"world_size": ranks.world_size, **counters})
        digests = {each for each in ranks.gather(digest) if each}
        if len(digests) != 1:
            raise CheckpointError(f"Checkpoint {self.step} differs between the machines that keep it.")
        if keeps:
            for name, facts in every[0][2].items() if not ranks.leads else ():
                write_mark(self.storage.folder, name, Mark(**facts))  # rank 0 knows the best one
            self.writer.publish(keep)

    def discard(self) -> None:
        """Removes the unfinished checkpoint, after an error."""
        if self.storage.writes:
            shutil.rmtree(self.writer.hidden, ignore_errors=True)

    def _hold(self, contents: Mapping[str, bytes]) -> dict[str, dict]:
        """Holds files in memory, until machines that keep checkpoints have received them."""
        self._contents |= contents
        return {name: _facts(data) for name, data in contents.items()}

    def _content(self, name: str) -> memoryview:
        if name in self._contents:
            return memoryview(self._contents[name])
        return np.memmap(self.writer.hidden / name, np.uint8, "r").data

    def _distribute(self, facts: list[dict[str, dict]]) -> None:
        """Sends the files of each rank to the machines that keep checkpoints and do not have them yet."""
        for keeper in self.storage.keepers:
            for source, writer in enumerate(self.storage.writers):
                for name, each in facts[source].items() if writer != keeper else ():
                    if self.ranks.rank == source:
                        send(self.ranks, self._content(name), keeper)
                    if self.ranks.rank == keeper:
                        receive(self.ranks, self.writer.hidden / name, FileFacts(**each), source)
        self._contents.clear()


def find_checkpoint(storage: Storage, resume: str) -> tuple[Path, list[str]]:
    """Finds the checkpoint that rank 0 continues, and brings it to the machines without it. All ranks must call it.

    A machine uses its own copy if its manifest has the same hash and its files are undamaged.

    Args:
        storage: Folders of the ranks.
        resume: The setting on this rank.

    Returns:
        Folder of the checkpoint for this rank; and notices about damaged checkpoints, and about newer ones, which the
        next save deletes.

    Raises:
        CheckpointError: There is no undamaged checkpoint; on rank 0. The other ranks exit.
    """
    ranks = storage.ranks
    if ranks.world_size == 1:
        return _choose(resume)
    path, notices, problem = storage.folder, [""], ""
    if ranks.leads:
        try:
            path, notices = _choose(resume)
        except CheckpointError as error:
            problem = str(error)
    step, problem, digest, names = ranks.gather(
        [path.name, problem, "", []] if problem or not ranks.leads else [path.name, "", _digest(path), _names(path)]
    )[0]
    if problem:
        raise CheckpointError(problem) if ranks.leads else SystemExit(2)
    if not ranks.leads:
        path, notices = storage.folder / "checkpoints" / step, []
    if storage.has_private_folders:
        has = storage.writers[ranks.rank] == 0 or (not storage.writes) or _is_intact(path, digest)
        lacking = [rank for rank, intact in enumerate(ranks.gather(has)) if not intact]
        for rank in lacking:
            _bring(storage, path, names, rank)
        if storage.writers[ranks.rank] in lacking and not storage.keeps:
            path = path.parent / RECEIVED / step
    return path, notices


def _choose(resume: str) -> tuple[Path, list[str]]:
    """The checkpoint that `resume` names or its newest undamaged predecessor, with notices for the user."""
    path, notices = resolve_resume(resume)
    if newer := [each.name for each in newer_checkpoints(path)]:
        names = ", ".join(reversed(newer))
        notices.append(f"{path.name} is not the newest checkpoint; the next save deletes the newer ones: {names}")
    return path, notices


def _bring(storage: Storage, path: Path, names: dict[str, dict], to: int) -> None:
    """Copies a checkpoint of rank 0 into the folder of the rank `to`."""
    ranks = storage.ranks
    target = path if storage.keeps else path.parent / RECEIVED / path.name
    hidden = target.parent / f".saving-{path.name}"
    for name, facts in names.items():
        if ranks.leads:
            data = (path / name).read_bytes()
            send(ranks, memoryview(data), to)
        if ranks.rank == to:
            receive(ranks, hidden / name, FileFacts(**facts), 0)
    if ranks.rank == to:
        make_visible(hidden, target)


def verify_kept(storage: Storage, step: int) -> None:
    """Reads the checkpoint of `step` again on each machine that keeps it. All ranks must call it.

    Raises:
        CheckpointError: It is damaged or missing; on rank 0 and there. The other ranks exit.
    """
    problem = ""
    if storage.ranks.rank in storage.keepers:
        try:
            verify(storage.folder / "checkpoints" / str(step))
        except CheckpointError as error:
            problem = str(error)
    first = next(filter(None, storage.ranks.gather(problem)), "")
    if problem or (first and storage.ranks.leads):
        raise CheckpointError(problem or first)
    if first:
        raise SystemExit(2)


def send(ranks: Ranks, data: memoryview, to: int) -> None:
    """Sends bytes to the rank `to`, which must call `receive`."""
    for start in range(0, len(data), CHUNK):
        part = torch.frombuffer(bytearray(data[start : start + CHUNK]), dtype=torch.uint8)
        ranks.send(part, to)


def receive(ranks: Ranks, path: Path, facts: FileFacts, source: int) -> None:
    """Writes the file that the rank `source` sends.

    Raises:
        CheckpointError: The file cannot be written, or has another hash than on the rank that has sent it.
    """
    digest = hashlib.sha256()
    with checkpoint_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, facts.size, CHUNK):
                part = ranks.receive(min(CHUNK, facts.size - start), source).numpy().tobytes()
                digest.update(part)
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
    if digest.hexdigest() != facts.sha256:
        raise CheckpointError(f"{path} differs from the file that rank {source} has sent.")


def _facts(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _digest(path: Path) -> str:
    """SHA-256 of the manifest, which contains the hashes of all files."""
    return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()


def _names(path: Path) -> dict[str, dict]:
    """File name -> size and hash of all files of a checkpoint, exported ones too; the manifest is the last one."""
    files = {name: asdict(each) for name, each in Manifest.read(path).files.items()}
    present = (str(each.relative_to(path)) for each in sorted(path.rglob("*")) if each.is_file())
    exported = {name: _facts((path / name).read_bytes()) for name in present if name not in (*files, MANIFEST)}
    return {**files, **exported, MANIFEST: _facts((path / MANIFEST).read_bytes())}


def _is_intact(path: Path, digest: str) -> bool:
    """True if `path` is an undamaged copy of the checkpoint whose manifest has this hash."""
    try:
        if _digest(path) != digest:
            return False
        verify(path)
    except (OSError, CheckpointError):
        return False
    return True
