"""Kept files: what took long to make lies in the user's cache folder, where the next start reads it. No torch here.

The name of a file is a hash of all that its content follows from. A file that is not what its name says is made anew;
a folder that cannot be written costs the time to make it and nothing else.
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
"""What was half written so long ago belongs to a process that is gone."""


def digest(*parts: bytes | np.ndarray | None) -> str:
    """SHA-256 of `parts`, of arrays with shape and type: its first 32 hexadecimal digits."""
    found = hashlib.sha256()
    for part in parts:
        whole = b"none" if part is None else part
        if isinstance(whole, np.ndarray):
            found.update(f"{whole.shape} {whole.dtype}".encode())
            whole = np.ascontiguousarray(whole).data
        found.update(whole)
    return found.hexdigest()[:32]


@dataclass(frozen=True)
class DiskCache:
    """Safetensors files of one kind."""

    kind: str
    """Name of their folder, in ``$XDG_CACHE_HOME/powerband``."""
    max_files: int
    """Files that stay: those that were used last."""
    stale_warning: str
    """How the warning about a file begins that is not what its name says."""
    write_warning: str
    """How the warning begins where a file cannot be written."""
    write_advice: str = ""
    """What else than another folder helps then."""

    def file(self, *origin: bytes | np.ndarray | None) -> Path | None:
        """Where the file lies whose content follows from `origin`; None for a user who has no home."""
        try:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "powerband" / self.kind
        except RuntimeError:
            return None
        return folder / f"{digest(*origin)}.safetensors"

    def read(self, file: Path | None, load: Callable[[Path], T]) -> T | None:
        """What is kept in a file; None where there is none, and, with a warning, where it is another or damaged.

        Args:
            file: From `file`.
            load: Reads it and checks it. It raises ValueError, KeyError, OSError or SafetensorError where the file is
                not what its name says; the warning ends with the text.
        """
        if file is None or not os.path.exists(file):  # False, too, where the folder may not be looked into
            return None
        try:
            found = load(file)
        except (ValueError, KeyError, OSError, SafetensorError) as error:
            warnings.warn(f"{self.stale_warning}: {str(error).removesuffix('.')}.", stacklevel=2)
            return None
        with suppress(OSError):
            os.utime(file)  # was used last
        return found

    def write(self, file: Path | None, save: Callable[[Path], object]) -> None:
        """Writes a file as a whole or not at all, whoever writes the same; removes what was used longest ago.

        Args:
            file: From `file`.
            save: Writes what `load` reads; its path is another one, and ends with ``.part``.
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
        """Removes files beyond `max_files`, and what processes that are gone have left half written."""
        whole, parts = {}, []
        for path in folder.iterdir():
            try:
                used = path.stat().st_mtime
            except OSError:  # another process has just removed it
                continue
            if path.suffix == ".part":
                parts += [path] if time.time() - used > STALE_S else []
            elif path.suffix == ".safetensors":
                whole[path] = used
        for path in [*parts, *sorted(whole, key=whole.__getitem__)[: -self.max_files]]:
            path.unlink(missing_ok=True)
