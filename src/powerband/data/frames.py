"""Frames: pictures of recorded rows, decoded once, as raw bytes that are mapped into memory and never parsed again.

A folder holds ``<camera>.u8``, (rows, height, width, 3) uint8 RGB of one camera, and ``frames.json``: the format's
number, ``rows``, ``cameras``, ``size`` that was asked for, ``height``, ``width`` and the ``fingerprint`` of the source.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.console import count_shown
from powerband.data.shards import ShardError

FORMAT = 1
FACTS = "frames.json"

Pictures = dict[str, np.ndarray]
"""Camera -> (n, H, W, 3) uint8 of n rows that follow one another."""


@contextlib.contextmanager
def placed(folder: Path, mark: str) -> Iterator[Path]:
    """A hidden folder beside `folder` that takes its place when all is written; it is whole or not there.

    Args:
        folder: Where it is to lie; what it holds is removed.
        mark: A file by which what may be removed is known.

    Raises:
        ShardError: The disk is full, the folder cannot be written, or it holds something else.
    """
    if folder.exists() and not (folder / mark).exists() and any(folder.iterdir()):
        raise ShardError(f"{folder} holds something else ({mark} is not there): name another folder, or empty it.")
    hidden = folder.parent / f".{folder.name}.writing"
    try:
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir(parents=True)
        yield hidden
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(hidden, folder)
    except OSError as error:
        raise ShardError(
            f"{folder} cannot be written: {error.strerror or error}. Free space there, or move."
        ) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Waits until no other process of this machine makes `folder`: trainings that start together share one cache.

    Raises:
        ShardError: The folder that it lies in cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        parent = os.open(folder.parent, os.O_RDONLY)
    except OSError as error:
        raise ShardError(
            f"{folder} cannot be written: {error.strerror or error}. Free space there, or move."
        ) from error
    try:
        with contextlib.suppress(OSError):  # a file system without locks: as if there were one writer
            fcntl.flock(parent, fcntl.LOCK_EX)
        yield
    finally:  # closing it, or the process' end, unlocks
        os.close(parent)


def differs(path: Path, wanted: dict[str, Any]) -> bool:
    """Whether the cache with its facts at `path` is not there, or is of something else."""
    there = facts_of(path)
    return any(there.get(name) != value for name, value in wanted.items())


def facts_of(path: Path) -> dict[str, Any]:
    """The facts that a cache keeps beside its bytes; {} where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


class FrameCache:
    """Pictures of all rows and cameras, mapped.

    Args:
        folder: As `build` left it.

    Attributes:
        cameras: Names.
        rows, height, width: Of each camera.
        source: Fingerprint of what the pictures were decoded from.
        fingerprint: The same with their size.

    Raises:
        ShardError: There is no cache, it is of another format, or a file is cut.
    """

    def __init__(self, folder: Path) -> None:
        facts = facts_of(folder / FACTS)
        if facts.get("format") != FORMAT:
            raise ShardError(f"{folder} holds no frames of format {FORMAT}: remove it, and it is built again.")
        self.rows, self.height, self.width = facts["rows"], facts["height"], facts["width"]
        self.cameras, self.source = tuple(facts["cameras"]), facts["fingerprint"]
        self.fingerprint = f"{self.source} at {self.height} x {self.width}"
        shape = (self.rows, self.height, self.width, 3)
        self._maps = {camera: mapped(folder / f"{camera}.u8", np.uint8, shape) for camera in self.cameras}

    @classmethod
    def build(
        cls,
        folder: Path,
        cameras: Sequence[str],
        rows: int,
        size: int | None,
        source: Iterable[tuple[int, Pictures]],
        fingerprint: str,
        gather: Callable[[Any], list[Any]] = lambda mine: [mine],
        rank: int = 0,
    ) -> FrameCache:
        """Opens the cache of a source; decodes it where it is not there or of another source. A collective.

        Args:
            folder: Where it is to lie.
            cameras: Names.
            rows: Of the source.
            size: Side in pixels that pictures are brought to by averaging areas; None leaves them as they are.
            source: Yields the first row of a block and its pictures; not touched where the cache is there.
            fingerprint: Tells one source from another.
            gather: Gives what every rank handed it, in the order of ranks.
            rank: This rank; the first alone decodes.

        Raises:
            ShardError: There is no camera, the disk is full, rows are missing, or pictures are not of one size.
        """
        if not cameras:
            raise ShardError("these episodes were recorded without pictures: record them with cameras, or use none.")
        wanted = {"format": FORMAT, "rows": rows, "cameras": list(cameras), "size": size, "fingerprint": fingerprint}
        if rank == 0:
            with one_writer(folder):
                if differs(folder / FACTS, wanted):
                    _decode(folder, wanted, source)
        gather(None)
        return cls(folder)

    def __getitem__(self, camera: str) -> np.ndarray:
        """Pictures (rows, H, W, 3) uint8 of one camera, mapped and read-only."""
        return self._maps[camera]

    def gather(self, camera: str, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Pictures (..., H, W, 3) uint8 of `rows` (...) int64, copied with no lock held, so that threads share it.

        Args:
            camera: Of which camera.
            rows: On the CPU, 0 or more and below `rows`.
            out: A contiguous tensor to copy to.
        """
        if out is None:
            out = torch.empty(*rows.shape, self.height, self.width, 3, dtype=torch.uint8)
        taken(self._maps[camera], rows, out)
        return out


def mapped(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A read-only view of a raw file.

    Raises:
        ShardError: It is not there, or has not as many bytes as it should.
    """
    wanted = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    there = path.stat().st_size if path.exists() else 0
    if there != wanted:
        raise ShardError(f"{path} has {there:,} bytes, it should have {wanted:,}: remove {path.parent}, and run again.")
    return np.memmap(path, dtype, "r", shape=shape).view(np.ndarray)


def taken(source: np.ndarray, rows: Tensor, out: Tensor) -> None:
    """Copies rows of `source` (N, ...) to `out` (..., as a row), which is contiguous."""
    assert out.is_contiguous(), out.stride()
    # "clip" lets NumPy write straight to `out`; "raise" would go through a copy.
    np.take(source, rows.reshape(-1).numpy(), 0, out.view(-1, *source.shape[1:]).numpy(), "clip")


def _decode(folder: Path, wanted: dict[str, Any], source: Iterable[tuple[int, Pictures]]) -> None:
    rows, cameras, done, shape = wanted["rows"], wanted["cameras"], 0, None
    with placed(folder, FACTS) as hidden, contextlib.ExitStack() as stack:
        files = {camera: stack.enter_context((hidden / f"{camera}.u8").open("wb")) for camera in cameras}
        tell = stack.enter_context(count_shown("decoding pictures", rows, "rows"))
        for first, pictures in source:
            for camera, file in files.items():
                block = _resized(pictures[camera], wanted["size"], camera)
                shape = shape or block.shape[1:]
                if block.shape[1:] != shape:
                    raise ShardError(
                        f"pictures of {camera} from row {first} on are {block.shape[1:]}, those before {shape}: "
                        "give the size that all are to have."
                    )
                file.seek(first * block[0].nbytes)
                file.write(block)
            done += len(block)
            tell(done)
        if done != rows:
            raise ShardError(f"pictures of {done} rows were recorded, and {rows} rows: record these episodes again.")
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
        facts = wanted | {"height": shape[0], "width": shape[1]}
        (hidden / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _resized(pictures: np.ndarray, size: int | None, camera: str) -> np.ndarray:
    """(n, H, W, 3) uint8 -> (n, size, size, 3), contiguous."""
    height, width = pictures.shape[1:3]
    if size is None or (height, width) == (size, size):
        return np.ascontiguousarray(pictures)
    if height != width:
        raise ShardError(f"pictures of {camera} are {height} x {width}, not square: set the size to none.")
    from PIL import Image

    area = Image.Resampling.BOX
    return np.stack([np.asarray(Image.fromarray(each).resize((size, size), area)) for each in pictures])
