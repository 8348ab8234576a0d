"""Working copy: a copy of the working folder, in which a short run can write without changing the user's files."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
from pathlib import Path

from powerband.core.errors import ConfigError

LINKED_BYTES = 100 * 2**20
"""Files above this size are links. A run is stopped before it writes through a link."""
LINKED_FOLDERS = (".git", ".hg", ".venv", "node_modules", ".mypy_cache", ".tox")
MOST_BYTES = 4 * 2**30
"""Largest sum of the sizes of the copied files."""
HASHED_BYTES = 16 * 2**20
MOST_LINKS = 5000
"""Largest number of links in one folder; a folder of data sets may contain millions of files."""


def is_linked(folder: str | Path, name: str) -> bool:
    """Returns whether a copy links the folder `name` of `folder`: no part of the project, or a virtual environment."""
    return name in LINKED_FOLDERS or os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))


def copied_bytes(source: Path) -> int:
    """Returns the bytes that a copy of a folder takes.

    Raises:
        ConfigError: They exceed `MOST_BYTES`.
    """
    total = 0
    for folder, names, files in os.walk(source):
        names[:] = [
            name for name in names if not is_linked(folder, name) and not os.path.islink(os.path.join(folder, name))
        ]
        for file in files:
            with contextlib.suppress(OSError):
                size = os.lstat(os.path.join(folder, file)).st_size
                total += size if size <= LINKED_BYTES else 0
        if total > MOST_BYTES:
            raise ConfigError(
                f"The working folder {source} has more than {MOST_BYTES // 2**30} GiB of files of at most "
                f"{LINKED_BYTES // 2**20} MiB, and each short run works in a copy. Start in a folder with code only."
            )
    return total


def copy_folder(source: Path, target: Path, without: Path | None = None) -> None:
    """Copies a folder; large files, virtual environments and folders such as ``.git`` become links.

    Args:
        source: Folder to copy.
        target: The copy.
        without: Folder that is left out, because it contains the copy; None means the copy itself.
    """
    without = without or target
    for folder, names, files in os.walk(source):
        here = Path(folder)
        to = target / here.relative_to(source)
        to.mkdir(parents=True, exist_ok=True)
        for name in list(names):
            path = here / name
            if path.is_symlink() or is_linked(here, name) or path == without:
                names.remove(name)
                if path != without:
                    (to / name).symlink_to(path.resolve())
            elif name == "__pycache__":
                names.remove(name)
        for file in files:
            path = here / file
            with contextlib.suppress(OSError):
                if path.is_symlink() or path.stat().st_size > LINKED_BYTES:
                    (to / file).symlink_to(path.resolve())
                elif path.is_file():
                    shutil.copy2(path, to / file)


def link_around(source: Path, root: Path, without: Path) -> None:
    """Links the neighbours of a folder and of each of its parents, so that relative paths above it exist.

    A run is stopped before it writes through a link.

    Args:
        source: The folder.
        root: Folder that stands for ``/`` and contains the copy of `source` at its own path.
        without: Folder that gets no link, because it contains `root`.
    """
    for inner in (source, *source.parents[:-1]):
        neighbours = root / inner.parent.relative_to(inner.anchor)
        with contextlib.suppress(OSError), os.scandir(inner.parent) as entries:
            for entry in itertools.islice(entries, MOST_LINKS):
                if entry.name != inner.name and entry.path != str(without):
                    (neighbours / entry.name).symlink_to(entry.path)


def redirected(text: str, source: Path, target: Path) -> str:
    """Returns a word of a command line with the path of a folder, and paths below it, replaced by those of its copy.

    A path that only begins with the same letters, such as ``/home/me/project-data``, stays.
    """
    return re.sub(rf"(?<![\w.-]){re.escape(str(source))}(?![^/\s'\",:;)\]}}])", lambda _: str(target), text)


def written_files(copy: Path, before: dict[str, tuple[int, int]]) -> dict[str, tuple[int, str]]:
    """Returns path -> (size, hash) of the files that a run has created or changed.

    Args:
        copy: The copy after the run.
        before: Path -> (size, time of change in ns) of its files before the run, see `file_stamps`.
    """
    found = {}
    for name, stamp in file_stamps(copy).items():
        if before.get(name) != stamp:
            found[name] = (stamp[0], _hash(copy / name))
    return found


def file_stamps(copy: Path) -> dict[str, tuple[int, int]]:
    """Returns path -> (size, time of change in ns) of the regular files of a folder."""
    stamps = {}
    for folder, names, files in os.walk(copy):
        names[:] = [name for name in names if name != "__pycache__"]
        for file in files:
            path = os.path.join(folder, file)
            with contextlib.suppress(OSError):
                if not os.path.islink(path):
                    status = os.stat(path)
                    stamps[os.path.relpath(path, copy)] = (status.st_size, status.st_mtime_ns)
    return stamps


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(HASHED_BYTES)).hexdigest()
    except OSError:
        return ""
