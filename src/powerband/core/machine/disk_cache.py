"""Disk cache: stores results of long computations in the user's cache folder. This module does not import torch.

The name of a file is a hash of all inputs of its content. Damaged files are created again. If the folder cannot be
written, results are computed at every start.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from safetensors import SafetensorError

T = TypeVar("T")
STALE_S = 3600.0
"""Age after which a partial file is removed, because its process has ended."""


def digest(*parts: bytes | np.ndarray | None) -> str:
    """First 32 hexadecimal digits of the SHA-256 of all `parts`. The hash of an array includes its shape and type."""
    sha256 = hashlib.sha256()
    for part in parts:
        data: bytes | np.ndarray | memoryview = b"none" if part is None else part
        if isinstance(data, np.ndarray):
            sha256.update(f"{data.shape} {data.dtype}".encode())
            data = np.ascontiguousarray(data).data
        sha256.update(data)
    return sha256.hexdigest()[:32]


@dataclass(frozen=True)
class DiskCache:
    """Stores the results of one kind of computation in the user's cache folder, one safetensors file per result."""

    kind: str
    """Name of the folder in ``$XDG_CACHE_HOME/powerband``."""
    max_files: int
    """Number of files to keep; the least recently used are removed first."""
    stale_warning: str
    """Start of the warning about an invalid file."""
    write_warning: str
    """Start of the warning about a file that cannot be written."""
    write_advice: str = ""
    """Other remedies for a failed write, appended to its warning."""

    def file(self, *origin: bytes | np.ndarray | None) -> Path | None:
        """Path of the file for a result, whose name is a hash of `origin`; None for a user without a home folder.

        Args:
            *origin: All inputs on which the result depends.
        """
        try:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "powerband" / self.kind
        except RuntimeError:
            return None
        return folder / f"{digest(*origin)}.safetensors"

    def read(self, file: Path | None, load: Callable[[Path], T]) -> T | None:
        """Loads a file. Returns None if it does not exist, and None with a warning if it is invalid.

        Args:
            file: Path that `file` returned; None counts as a file that does not exist.
            load: Reads and checks the file. It raises ValueError, KeyError, OSError or SafetensorError for an invalid
                file; the warning contains the text of the error.
        """
        if file is None or not os.path.exists(file):  # False for an unreadable folder too
            return None
        try:
            found = load(file)
        except (ValueError, KeyError, OSError, SafetensorError) as error:
            warnings.warn(f"{self.stale_warning}: {str(error).removesuffix('.')}.", stacklevel=2)
            return None
        with suppress(OSError):
            os.utime(file)  # marks it as recently used
        return found

    def write(self, file: Path | None, save: Callable[[Path], object]) -> None:
        """Writes a file atomically, and removes the least recently used files beyond `max_files`.

        Args:
            file: Path that `file` returned; None writes nothing.
            save: Writes the content to the path that it receives, a temporary one that ends with ``.part``.
        """
        if file is None:
            return
        part = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            save(part)
            part.replace(file)
            self._limit(file.parent)
        except (OSError, SafetensorError) as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            warnings.warn(
                f"{self.write_warning} ({getattr(error, 'strerror', None) or error}). Make {file.parent} writable, or "
                f"set XDG_CACHE_HOME to another folder{self.write_advice}.",
                stacklevel=2,
            )

    def _limit(self, folder: Path) -> None:
        """Removes files beyond `max_files`, and partial files of ended processes."""
        last_used, parts = {}, []
        for path in folder.iterdir():
            try:
                used = path.stat().st_mtime
            except OSError:  # another process has just removed it
                continue
            if path.suffix == ".part":
                parts += [path] if time.time() - used > STALE_S else []
            elif path.suffix == ".safetensors":
                last_used[path] = used
        surplus = max(0, len(last_used) - self.max_files)
        for path in [*parts, *sorted(last_used, key=last_used.__getitem__)[:surplus]]:
            path.unlink(missing_ok=True)
