"""Folder lock: lets one search at a time work in the folder of a study."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from powerband.core.errors import ConfigError


def lock_folder(folder: Path, machine: str = "") -> IO[str]:
    """Locks a study's folder until the returned file is closed, or this process ends.

    Args:
        folder: The folder.
        machine: Name of this machine if several machines may work in the folder, each with one search; "" otherwise.

    Raises:
        ConfigError: Another process has locked it, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"study{'-' * bool(machine)}{machine}.lock").open("a")
    except OSError as error:
        raise ConfigError(f"The study folder {folder} cannot be written: {error.strerror}. Use another one.") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(
            f"Another search of this machine runs in the study folder {folder}. Wait for its end, or write another "
            f"study_dir. Several searches can share a study with storage=, each in a study_dir of its own."
        ) from None
    except OSError:  # a file system without locks
        pass
    return file


def is_alive(process: int) -> bool:
    """Returns whether a process of this machine still exists; `process` is its id."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
