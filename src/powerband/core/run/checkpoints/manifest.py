"""Manifest: the list of the files of a checkpoint with their sizes and hashes, and verified access to these files.

A checkpoint can be damaged, or come from someone else. So only regular files with plain names are opened, no link is
followed, a size is compared before anything is read, and files are hashed in blocks.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError
from powerband.core.regular_files import regular_file

FORMAT = 2
"""Format of new manifests. Manifests of format 1 are read too; they have neither a run id nor a hash of their own."""
MAX_MANIFEST_BYTES = 16 * 2**20
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


class CheckpointError(ConfigError):
    """A checkpoint cannot be written, or is damaged. The message names the file and the fix."""


class StateMismatchError(CheckpointError):
    """A saved state does not fit the present configuration, for example because a network has another size."""


@dataclass(frozen=True)
class FileFacts:
    """Size in bytes and SHA-256 of a file, as it was saved."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Contents of a checkpoint.

    Attributes:
        run: Id of the run that saved it; "" if that is unknown.
        step: Environment steps, which also name the folder.
        world_size: Number of ranks that saved it.
        counters: Further counters of the run by name.
        files: File name -> size and hash.
    """

    run: str
    step: int
    world_size: int
    counters: dict[str, int]
    files: dict[str, FileFacts]

    def to_json(self) -> bytes:
        """The manifest as JSON text, with a hash of the manifest itself."""
        body = {"format": FORMAT, **asdict(self)}
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        return json.dumps({**body, "sha256": digest}, indent=1).encode()

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads and checks the manifest of the checkpoint in `folder`.

        Raises:
            CheckpointError: The manifest is missing, damaged, or of another version or step.
        """
        path = folder / "manifest.json"
        with open_regular(path) as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
        if len(text) > MAX_MANIFEST_BYTES:
            raise _damaged(path, f"it has more than {MAX_MANIFEST_BYTES // 2**20} MiB")
        try:
            body = json.loads(text)
            version = body["format"]
            if type(version) is int and version in (1, FORMAT):
                manifest = cls._from_body(body, folder)
                if version == FORMAT and manifest.to_json() != text:
                    raise ValueError("it has changed since it was saved")
                return manifest
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _damaged(path, f"{type(error).__name__}: {error}"[:200]) from error
        raise CheckpointError(
            f"{folder} has format {str(version)[:40]}, but this version of powerband reads 1 and {FORMAT}. "
            f"Use the version of powerband that saved it."
        )

    @classmethod
    def _from_body(cls, body: dict[str, Any], folder: Path) -> Manifest:
        if body["format"] == 1:
            counters = dict(body["meta"])
            body = {**body, "run": "", "world_size": counters.pop("world_size"), "counters": counters}
        files = {name: FileFacts(facts["size"], facts["sha256"]) for name, facts in body["files"].items()}
        manifest = cls(body["run"], body["step"], body["world_size"], body["counters"], files)
        if type(manifest.step) is not int or str(manifest.step) != folder.name:
            raise ValueError(f"it belongs to step {manifest.step}, not to {folder.name}")
        if type(manifest.world_size) is not int or manifest.world_size < 1:
            raise ValueError(f"world_size={manifest.world_size}")
        for name, facts in files.items():
            if not PLAIN_NAME.fullmatch(name) or type(facts.size) is not int or type(facts.sha256) is not str:
                raise ValueError(f"the entry {name[:80]!r} is not a file with size and hash")
        return manifest


def verify_file(path: Path, facts: FileFacts) -> None:
    """Compares a file with its size and hash, without holding it in memory.

    Raises:
        CheckpointError: The file is missing, truncated or changed, or is not a regular file.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != facts.size:
            raise _damaged(path, f"it has {size} bytes, but was saved with {facts.size}")
        try:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _damaged(path, str(error.strerror)) from error
    if digest != facts.sha256:
        raise _damaged(path, f"it has changed since it was saved (SHA-256 {digest[:8]}..., not {facts.sha256[:8]}...)")


@contextmanager
def open_regular(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a file of a checkpoint for reading.

    Raises:
        CheckpointError: The file or its folder is missing, a link, a device or a pipe.
    """
    for folder in (path.parent, path.parent.parent):
        if folder.is_symlink():
            raise _damaged(path, f"{folder.name} is a symbolic link")
    with ExitStack() as opened:
        try:
            file = opened.enter_context(regular_file(path))
        except OSError as error:
            raise _damaged(path, str(error.strerror)) from error
        yield file


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} cannot be used: {reason}.")
