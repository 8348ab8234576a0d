"""OwnedFolder: the run folder while this run writes to it, with its lock, its processes and the reason for its end."""

from __future__ import annotations

from collections.abc import Collection

from powerband.core.errors import ConfigError
from powerband.core.run.folders.folder_agreement import LockedFolder
from powerband.core.run.folders.storage import Storage
from powerband.core.run_folder import process_facts, write_end_reason, write_processes


class OwnedFolder:
    """The run folder as one rank sees it while the run writes to it. Only the writer of the folder writes.

    Args:
        storage: Folders of all ranks.
        own: The folder with its lock; None for a folder without a lock.
        jobs: Ids of the launchers that may restart the ranks of this run.
    """

    def __init__(self, storage: Storage, own: LockedFolder | None = None, jobs: Collection[str] = ()) -> None:
        self.storage, self.path, self.ranks = storage, storage.folder, storage.ranks
        self.own, self.jobs = own or LockedFolder(storage.folder), jobs
        self._processes_written = False

    def write_processes(self) -> None:
        """Writes host and process id of each rank to the folder, for other commands. All ranks must call it."""
        processes = self.ranks.gather(process_facts())
        if self.storage.writes:
            write_processes(self.path, processes, self.jobs)
        self._processes_written = self.storage.writes

    def check_lock(self) -> None:
        """Raises ConfigError if another process has taken the folder while this process was suspended."""
        if self.own.lock is not None and self.own.lock.lost:
            raise ConfigError(
                f"Another process took over {self.path} while this process was suspended. This process ends and writes "
                f"nothing more; the last checkpoint is complete."
            )

    def write_end(self, reason: str) -> None:
        """Writes to the folder why the run ended.

        Before `write_processes` this does nothing, because the folder then still describes an earlier run.
        """
        if self._processes_written:
            write_end_reason(self.path, reason)
