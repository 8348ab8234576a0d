"""Regular files: reads files of a run folder that may be damaged or foreign, and replaces files as a whole.

Only regular files are opened. A link would lead to other files, a pipe would block, and a device would never end.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from powerband.core.json_shape import is_plain

MAX_JSON_BYTES = 64 * 2**20
"""Largest JSON file that is read. The largest ones, timelines of training steps, have some MiB."""
READ_ONLY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def regular_file(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a regular file for reading.

    Raises:
        OSError: The file is missing, unreadable, a link, a folder, a device or a pipe. Its ``strerror`` says which.
    """
    try:
        number = os.open(path, READ_ONLY)
    except ValueError as error:  # a NUL byte
        raise FileNotFoundError(0, "it has an impossible name", str(path)) from error
    except OSError as error:
        if path.is_symlink():
            raise OSError(error.errno, "it is a symbolic link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(0, "it is not a regular file", str(path))
    with os.fdopen(number, "rb") as file:
        yield file


def read_text(path: Path, most: int = MAX_JSON_BYTES) -> str:
    """Reads a UTF-8 text of at most `most` bytes.

    Raises:
        OSError: As in `regular_file`, or the file is larger or is not a text. Its ``strerror`` says which.
    """
    with regular_file(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(0, f"it has more than {most:,} bytes", str(path))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OSError(0, "it is not a text", str(path)) from error


def replace_text(path: Path, text: str) -> None:
    """Writes a UTF-8 text file as a whole, and never through a link. A kill or a full disk leaves the earlier file.

    Raises:
        OSError: The file cannot be written.
    """
    hidden = path.with_name(f".{path.name}.new")
    hidden.unlink(missing_ok=True)
    try:
        hidden.write_text(text, encoding="utf-8")
        os.replace(hidden, path)
    except OSError:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object. A missing or damaged file gives an empty dictionary."""
    try:
        value = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and is_plain(value) else {}
