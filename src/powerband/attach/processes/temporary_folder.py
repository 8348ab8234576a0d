"""Temporary folder: the place for the records and copies of one run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from powerband.core.errors import ConfigError


def temporary_folder(prefix: str) -> Path:
    """Creates a folder for one run. The caller deletes it.

    Args:
        prefix: Start of its name, such as ``powerband-attach-``.

    Raises:
        ConfigError: No folder for temporary files is writable.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise ConfigError(
            f"No folder for temporary files is writable ({error.strerror}). Set TMPDIR to one."
        ) from error
