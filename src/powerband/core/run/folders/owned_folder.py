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
            raise _taken_over(str(self.path))

    def check_lock_on_all_ranks(self) -> None:
        """Reads the locks again before a save, and ends the run on all ranks if one is lost. All ranks must call it.

        Raises:
            ConfigError: On rank 0 and on ranks whose folder was taken over. The others exit with the same status.
        """
        lock = self.own.lock
        lost = lock is not None and not lock.is_held()
        taken = [path for path in self.ranks.gather(str(self.path) if lost else "") if path]
        if taken:
            raise _taken_over(taken[0]) if lost or self.ranks.leads else SystemExit(2)

    def write_end(self, reason: str) -> None:
        """Writes to the folder why the run ended.

        Before `write_processes` this does nothing, because the folder then still describes an earlier run; nor after
        another process has taken the folder over.
        """
        if self._processes_written and (self.own.lock is None or self.own.lock.is_held()):
            write_end_reason(self.path, reason)


def _taken_over(folder: str) -> ConfigError:
    return ConfigError(
        f"Another process took over {folder} while this process was suspended. This process ends and writes nothing "
        f"more; the last checkpoint is complete."
    )
