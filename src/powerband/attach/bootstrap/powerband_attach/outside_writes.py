"""Outside writes: stops a run before it writes outside the copy of the working folder.

Writes of Python, `torch.save` and sqlite3 are seen, but not those of other programs or of C libraries.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import urllib.parse
from typing import Any

from powerband_attach import record
from powerband_attach.imports import when_imported

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
    when_imported("torch.serialization", _check_saves)


def _look(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = args
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & WRITING_FLAGS)
        if writes:
            _check(path)
    elif event == "os.mkdir":
        if not os.path.lexists(args[0]):  # the event also comes before the error that a folder exists
            _check(args[0])
    elif event in ("shutil.rmtree", "os.truncate"):
        _check(args[0])
    elif event in ("os.remove", "os.rmdir"):
        _check(args[0], follow=False)
    elif event in ("os.rename", "shutil.move"):
        _check(args[0], follow=False)
        _check(args[1], follow=False)
    elif event in ("os.symlink", "os.link"):
        _check(args[1], follow=False)
    elif event == "sqlite3.connect":
        _check(_file_of_database(args[0]))


def _file_of_database(name: Any) -> str:
    """Returns the file that a connection may write, or "" for a database in memory or one that is read only."""
    text = os.fsdecode(name)
    if not text.startswith("file:"):
        return "" if text == ":memory:" else text
    parts = urllib.parse.urlsplit(text)
    path = urllib.parse.unquote(parts.path)
    reads = any(word in parts.query for word in ("mode=ro", "mode=memory", "immutable=1"))
    return "" if reads or path == ":memory:" else path


def _check_saves(module: Any) -> None:
    """Wraps `torch.save`, which opens its file in C++."""
    original = module.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        file = kwargs.get("f", args[1] if len(args) > 1 else None)
        if isinstance(file, (str, os.PathLike)):
            _check(os.fspath(file))
        return original(*args, **kwargs)

    module.save = save


def _check(path: Any, follow: bool = True) -> None:
    """Ends the run if it may not write a path.

    Args:
        path: The path.
        follow: Whether the write goes to the target of a link. Without it, the write changes the link itself, which
            belongs to the folder that contains it.
    """
    if not isinstance(path, (str, bytes)) or not path:
        return
    text = os.fsdecode(path)
    folder, name = os.path.split(text.rstrip(os.sep))
    named = os.path.normpath(os.path.join(os.path.realpath(folder or "."), name))
    full = os.path.realpath(text) if follow else named
    if any(full == folder or full.startswith(folder + os.sep) for folder in _allowed):
        return
    if any(part in full.split(os.sep) for part in CACHES):
        return
    copy = _allowed[0] + os.sep
    link = named[len(copy) :] + " -> " if named.startswith(copy) else ""  # files above a size are links in the copy
    record.write("outside", path=link + full)
    os._exit(0)
