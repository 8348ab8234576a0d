"""Offline copy: a folder for one run of the script, with a copy of the working folder, away from all services."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from powerband.attach.audit.working_copy import copy_folder, redirected
from powerband.attach.temporary_folder import temporary_folder

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
CONSOLE_BYTES = 4 * 2**20


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
        return self.folder / self.source.name

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
        text = self.console.read_bytes()[:CONSOLE_BYTES].decode("utf-8", "replace")
        return text.replace(str(self.copy), str(self.source)).replace(str(self.folder / "tmp"), "TMPDIR")

    def in_copy(self, place: str) -> str:
        """Returns a place ``path:line`` of the user's folder as a place in the copy."""
        return place.replace(str(self.source) + os.sep, str(self.copy) + os.sep, 1)


@contextlib.contextmanager
def offline_copy(command: Sequence[str], source: Path, prefix: str) -> Iterator[OfflineCopy]:
    """Context with a copy of the working folder. W&B, MLflow and hubs are offline, and torchrun gets a free port.

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
        copy_folder(source, folder / source.name)
        words = [redirected(word, source, folder / source.name) for word in command]
        port = str(_free_port())
        variables = {**OFFLINE, "TMPDIR": str(folder / "tmp"), "MASTER_PORT": port, "PET_MASTER_PORT": port}
        yield OfflineCopy(folder, source, words, variables)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
