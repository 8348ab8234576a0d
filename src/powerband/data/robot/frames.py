"""FrameCache: images of recorded rows, decoded once into raw files that are memory-mapped.

A folder holds ``<camera>.u8``, (rows, height, width, 3) uint8 RGB of one camera, and ``frames.json``: the format
number, ``rows``, ``cameras``, the requested ``size``, ``height``, ``width`` and the ``fingerprint`` of the source.
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

from powerband.core.telemetry.console import count_progress_bar
from powerband.data.recorded.shards import ShardError, replace_folder

FORMAT = 1
FACTS_FILE = "frames.json"

CameraImages = dict[str, np.ndarray]
"""Camera -> images (n, H, W, 3) uint8 of n consecutive rows."""


@contextlib.contextmanager
def atomic_folder(folder: Path, mark: str) -> Iterator[Path]:
    """Context that yields a hidden folder, which replaces `folder` at the end, so that `folder` is complete or absent.

    Args:
        folder: Folder to write; its old content is removed.
        mark: Path, relative to the folder, of a file that all content of this kind contains. Old content without this
            file is not removed; it raises an error.

    Raises:
        ShardError: The disk is full, the folder cannot be written, or it has other content.
    """
    if folder.exists() and not (folder / mark).exists() and any(folder.iterdir()):
        raise ShardError(
            f"{folder} has other files (but no {mark}), so it is not overwritten. Name another folder, or empty this "
            f"one."
        )
    partial = folder.parent / f".{folder.name}.writing"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        replace_folder(partial, folder)
    except OSError as error:
        raise _write_error(folder, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_error(folder: Path, error: OSError) -> ShardError:
    return ShardError(f"{folder} cannot be written: {error.strerror or error}. Free space, or name another folder.")


@contextlib.contextmanager
def single_writer(folder: Path) -> Iterator[None]:
    """Context in which no other process of this machine writes `folder`, so that concurrent runs share one cache.

    Entering the context waits until a process that writes the folder has finished.

    Raises:
        ShardError: The parent folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        parent = os.open(folder.parent, os.O_RDONLY)
    except OSError as error:
        raise _write_error(folder, error) from error
    try:
        with contextlib.suppress(OSError):  # on a file system without locks, several processes may write
            fcntl.flock(parent, fcntl.LOCK_EX)
        yield
    finally:  # the system releases the lock when the descriptor is closed or the process ends
        os.close(parent)


def is_stale(path: Path, facts: dict[str, Any]) -> bool:
    """Returns True if a cache must be built: its JSON file `path` is missing, or its values differ from `facts`."""
    stored = read_facts(path)
    return any(stored.get(name) != value for name, value in facts.items())


def read_facts(path: Path) -> dict[str, Any]:
    """Reads the values of the JSON file `path` that describes a cache; returns {} if it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


class FrameCache:
    """Images of recorded episodes, decoded once and memory-mapped from disk.

    Args:
        folder: Folder that `build` wrote.

    Attributes:
        cameras: Names of the cameras.
        rows: Number of images per camera, one per recorded row (step).
        height: Height of the images in pixels.
        width: Width of the images in pixels.
        source: Hash that identifies the recorded episodes.
        fingerprint: Text that identifies the episodes and the image size.

    Raises:
        ShardError: The cache is missing, has another format, or is truncated.
    """

    def __init__(self, folder: Path) -> None:
        facts = read_facts(folder / FACTS_FILE)
        if facts.get("format") != FORMAT:
            raise ShardError(
                f"{folder} has no decoded images of format {FORMAT}. Remove the folder; the next run builds it again."
            )
        self.rows, self.height, self.width = facts["rows"], facts["height"], facts["width"]
        self.cameras, self.source = tuple(facts["cameras"]), facts["fingerprint"]
        self.fingerprint = f"{self.source} at {self.height} x {self.width}"
        shape = (self.rows, self.height, self.width, 3)
        self._maps = {camera: map_file(folder / f"{camera}.u8", np.uint8, shape) for camera in self.cameras}

    @classmethod
    def build(
        cls,
        folder: Path,
        cameras: Sequence[str],
        rows: int,
        size: int | None,
        source: Iterable[tuple[int, CameraImages]],
        fingerprint: str,
        gather: Callable[[Any], list[Any]] = lambda mine: [mine],
        rank: int = 0,
    ) -> FrameCache:
        """Opens the cache of recorded images. They are decoded first if the cache is missing or does not match.

        The cache does not match if it is of another source or image size. All ranks (processes of the training) must
        call this function together.

        Args:
            folder: Folder of the cache.
            cameras: Names of the cameras.
            rows: Number of rows of the source.
            size: Side in pixels that images are resized to by averaging areas; None keeps their size.
            source: Iterable of image blocks (first row, camera -> images (n, H, W, 3) uint8); not used if the cache is
                valid.
            fingerprint: Hash that identifies the source.
            gather: Function that all ranks call together; it returns the arguments of all ranks, in rank order. The
                default is for a single rank.
            rank: Index of this rank; rank 0 decodes.

        Raises:
            ShardError: The source has no camera, the disk is full, rows are missing, or images differ in size.
        """
        if not cameras:
            raise ShardError(
                "These episodes were recorded without images. Record them with cameras, or write use_images=false."
            )
        facts = {"format": FORMAT, "rows": rows, "cameras": list(cameras), "size": size, "fingerprint": fingerprint}
        if rank == 0:
            with single_writer(folder):
                if is_stale(folder / FACTS_FILE, facts):
                    _decode(folder, facts, source)
        gather(None)
        return cls(folder)

    def __getitem__(self, camera: str) -> np.ndarray:
        """Memory-mapped images (rows, height, width, 3) uint8 of one camera, read-only."""
        return self._maps[camera]

    def gather(self, camera: str, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Copies the images of some rows. The copy releases the GIL for other threads.

        Args:
            camera: Name of the camera.
            rows: Indices of the rows, of any shape (...), on the CPU.
            out: Contiguous tensor (..., height, width, 3) uint8 to copy to; None creates one.

        Returns:
            Images (..., height, width, 3) uint8: `out` or the new tensor.
        """
        if out is None:
            out = torch.empty(*rows.shape, self.height, self.width, 3, dtype=torch.uint8)
        copy_rows(self._maps[camera], rows, out)
        return out


def map_file(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Memory-maps a raw file as an array of the given type and shape, read-only.

    Raises:
        ShardError: The file is missing or has another size.
    """
    expected = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    size = path.stat().st_size if path.exists() else 0
    if size != expected:
        raise ShardError(f"{path} has {size:,} bytes instead of {expected:,}. Remove {path.parent}, and run again.")
    return np.memmap(path, dtype, "r", shape=shape).view(np.ndarray)


def copy_rows(source: np.ndarray, rows: Tensor, out: Tensor) -> None:
    """Copies rows of `source` (N, ...), given by their indices `rows`, to the contiguous `out` (*rows.shape, ...)."""
    assert out.is_contiguous(), out.stride()
    # With "clip", NumPy writes directly to `out`; "raise" needs an intermediate copy.
    np.take(source, rows.reshape(-1).numpy(), 0, out.view(-1, *source.shape[1:]).numpy(), "clip")


def _decode(folder: Path, facts: dict[str, Any], source: Iterable[tuple[int, CameraImages]]) -> None:
    rows, cameras, done = facts["rows"], facts["cameras"], 0
    shape: tuple[int, ...] = ()
    with atomic_folder(folder, FACTS_FILE) as partial, contextlib.ExitStack() as stack:
        files = {camera: stack.enter_context((partial / f"{camera}.u8").open("wb")) for camera in cameras}
        on_progress = stack.enter_context(count_progress_bar("decoding images", rows, "rows"))
        for first, images in source:
            for camera, file in files.items():
                block = _resized(images[camera], facts["size"], camera)
                shape = shape or block.shape[1:]
                if block.shape[1:] != shape:
                    raise ShardError(
                        f"The images of {camera} from row {first} have shape {block.shape[1:]}, earlier ones {shape}. "
                        f"Pass one size to FrameCache.build, such as size=128: it resizes all images."
                    )
                file.seek(first * block[0].nbytes)
                file.write(block.data)
            done += len(block)
            on_progress(done)
        if done != rows:
            raise ShardError(
                f"The recorded data have {rows} steps, but only {done} have images. Record all episodes with images."
            )
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
        facts = facts | {"height": shape[0], "width": shape[1]}
        (partial / FACTS_FILE).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _resized(images: np.ndarray, size: int | None, camera: str) -> np.ndarray:
    """Resizes n square images (n, H, H, 3) uint8 to (n, size, size, 3), contiguous. A `size` of None keeps them."""
    height, width = images.shape[1:3]
    if size is None or (height, width) == (size, size):
        return np.ascontiguousarray(images)
    if height != width:
        raise ShardError(
            f"The images of {camera} are {height} x {width}, and only square images can be resized. Record square "
            f"images."
        )
    from PIL import Image

    area = Image.Resampling.BOX
    return np.stack([np.asarray(Image.fromarray(each).resize((size, size), area)) for each in images])
