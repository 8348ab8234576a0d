"""Offline copy: a folder for one run of the script, with a copy of the working folder, away from all services."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from powerband.attach.audit.working_copy import copy_folder, link_around, redirected
from powerband.attach.processes.temporary_folder import temporary_folder

OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "MLFLOW_TRACKING_URI": "file:mlruns",
}
"""Variables that keep services offline; MLflow writes into the copy."""
CONSOLE_BYTES, TAIL_BYTES = 4 * 2**20, 64 * 2**10
"""Bytes of the output that are kept: its start for comparisons, and its end, which names the error of a script."""


@dataclass(frozen=True)
class OfflineCopy:
    """Folders and command line of one run.

    Attributes:
        folder: Folder of the run, deleted afterwards.
        source: The user's working folder.
        command: Command line with paths in the copy.
        variables: Environment variables of the run.
    """

    folder: Path
    source: Path
    command: list[str]
    variables: dict[str, str]

    @property
    def copy(self) -> Path:
        """The copy of the working folder."""
        return self.root / self.source.relative_to(self.source.anchor)

    @property
    def root(self) -> Path:
        """Folder that stands for ``/``: it contains the copy at its own path, and links to everything around it."""
        return self.folder / "copy"

    @property
    def records(self) -> Path:
        """Folder of the records."""
        return self.folder / "records"

    @property
    def console(self) -> Path:
        """File for the output."""
        return self.folder / "console"

    def console_text(self) -> str:
        """Returns the start of the output, with the user's paths."""
        with self.console.open("rb") as file:
            return self.users(file.read(CONSOLE_BYTES).decode("utf-8", "replace"))

    def console_tail(self) -> str:
        """Returns the end of an output that is too long for `console_text`, with the user's paths; else ""."""
        with self.console.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(CONSOLE_BYTES, size - TAIL_BYTES))
            return self.users(file.read().decode("utf-8", "replace"))

    def users(self, text: str) -> str:
        """Returns a text with the user's paths in place of those of the run."""
        return text.replace(str(self.root), "").replace(str(self.folder / "tmp"), "TMPDIR")

    def in_copy(self, place: str) -> str:
        """Returns a place ``path:line`` of the user as a place in the run."""
        return f"{self.root}{place}"


@contextlib.contextmanager
def offline_copy(command: Sequence[str], source: Path, prefix: str) -> Iterator[OfflineCopy]:
    """Context with a copy of the working folder. W&B, MLflow and hubs are offline, and torchrun gets a free port.

    The copy has links around it, so that a relative path above the working folder, such as ``../data``, exists.

    Args:
        command: Command line of the user.
        source: The user's working folder.
        prefix: Start of the name of the temporary folder.

    Raises:
        ConfigError: There is no place for temporary files.
    """
    folder = temporary_folder(prefix).resolve()
    try:
        (folder / "records").mkdir()
        (folder / "tmp").mkdir()
        port = str(_free_port())
        variables = {**OFFLINE, "TMPDIR": str(folder / "tmp"), "MASTER_PORT": port, "PET_MASTER_PORT": port}
        place = OfflineCopy(folder, source, [], variables)
        copy_folder(source, place.copy, folder)
        link_around(source, place.root, folder)
        place.command.extend(redirected(word, source, place.copy) for word in command)
        if "PYTHONPATH" in os.environ:
            variables["PYTHONPATH"] = redirected(os.environ["PYTHONPATH"], source, place.copy)
        variables["PWD"] = str(place.copy)
        yield place
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
