"""Outside writes: stops a run before it writes outside the copy of the working folder."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

from powerband_attach import record

WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
CACHES = ("__pycache__", ".cache", ".config", ".triton", ".numba_cache", ".nv", ".torch", ".keras")
"""Folders of caches, in which packages may write anywhere."""
_allowed: tuple[str, ...] = ()


def install(folder: str) -> None:
    """Adds the audit hook. Writes to temporary folders, devices and caches of packages are allowed.

    Args:
        folder: The copy of the working folder.
    """
    global _allowed
    folders = [folder, os.environ.get("POWERBAND_ATTACH_DIR", ""), tempfile.gettempdir()]
    _allowed = tuple(os.path.realpath(folder) for folder in filter(None, folders)) + ("/dev", "/proc", "/run", "/sys")
    sys.addaudithook(_look)


def _look(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = args
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & WRITING_FLAGS)
        if writes:
            _check(path)
    elif event in ("os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "os.truncate"):
        _check(args[0])
    elif event in ("os.rename", "shutil.move"):
        _check(args[0])
        _check(args[1])


def _check(path: Any) -> None:
    if not isinstance(path, (str, bytes)) or not path:
        return
    full = os.path.realpath(os.fsdecode(path))
    if any(full == folder or full.startswith(folder + os.sep) for folder in _allowed):
        return
    if any(part in full.split(os.sep) for part in CACHES):
        return
    record.write("outside", path=full)
    os._exit(0)
