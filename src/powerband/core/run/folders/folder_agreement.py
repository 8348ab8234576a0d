"""Run folders: the ranks of a run find out which of them see the folder of rank 0, and lock all folders."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.ranks import restarts
from powerband.core.ranks.ranks import Ranks
from powerband.core.run.folders.run_lock import RunLock, sees_lock
from powerband.core.run.folders.storage import Storage
from powerband.core.run_folder import create_folder, find_run, refuse_links, remove_unused_run, run_id

PATIENCE_S, OTHER_PATIENCE_S = 5.0, 1.0
"""Seconds for which a rank looks for the lock of rank 0 in the same folder, and in another one that its user named."""
LISTING_S = 1.0
"""Seconds after which a network file system shows the files that other machines have just written."""


@dataclass
class LockedFolder:
    """The run folder of this rank's machine.

    Attributes:
        folder: The folder.
        created: True if this rank has created it.
        lock: Its lock, if this rank writes it.
        resumed: True if the folder belongs to a run that this one continues, so that its files stay in any case.
    """

    folder: Path
    created: bool = False
    lock: RunLock | None = None
    resumed: bool = False

    def release(self) -> None:
        """Releases the lock, if this rank holds it."""
        if self.lock is not None:
            self.lock.release()

    def give_up(self) -> None:
        """Releases the folder, and removes what this rank has made, after an error before the first step."""
        owned = self.lock is not None and not self.lock.lost  # otherwise the files are those of another owner
        self.release()
        if owned and not self.resumed:
            remove_unused_run(self.folder, self.created)
        elif self.created and not owned:
            with contextlib.suppress(OSError):  # not empty
                self.folder.rmdir()


@dataclass
class FolderAgreement:
    """The ranks of a run, while they agree on its folders. All of them make the same calls.

    Attributes:
        ranks: Ranks of the run.
        settings: Settings of the run, with the devices and folders of this machine.
        claim: Creates or finds the run folder on rank 0, and returns it and whether it was created.
        jobs: Ids of the launchers that may restart the ranks. Those that were lost and may come back are added.
        restarted: True if the ranks continue the run of a launcher of theirs.
    """

    ranks: Ranks
    settings: RunConfig
    claim: Callable[[], tuple[Path, bool]]
    jobs: set[str]
    restarted: bool = False
    own: LockedFolder = field(init=False)

    def agree(self) -> tuple[Storage, LockedFolder]:
        """Returns the folders of all ranks, and the one of this rank.

        Raises:
            ConfigError: A folder cannot be used; or ``storage=shared``, and a rank does not see that of rank 0. The
                message appears on this rank and on rank 0. Other ranks exit.
        """
        self.own = LockedFolder(_folder_of(self.settings), resumed=bool(self.settings.resume))
        try:
            return self._agree(), self.own
        except (ConfigError, SystemExit):  # on all ranks
            self.own.give_up()
            self.ranks.barrier()  # a rank that still ends its part of the group aborts if the others are gone
            self.ranks.close()
            raise

    def _agree(self) -> Storage:
        ranks, host = self.ranks, platform.node()
        if self.restarted:
            self.jobs = self.jobs.union(
                ranks.gather(sorted(restarts.jobs_of(self.own.folder)) if ranks.leads else [])[0]
            )
        problem = self._attempt(self._claim_leading) if ranks.leads else ""
        self._end_if(problem)
        text = self.settings.resume or self.settings.run_dir
        own = self.own
        token = own.lock.token if own.lock is not None else ""
        leader = ranks.gather([text, str(own.folder), os.path.abspath(own.folder), token, host])[0]
        seen = own.folder  # which the user has named, and which may be another way to the same disk
        if text == leader[0] and not ranks.leads:
            seen = Path(leader[1] if host == leader[4] else leader[2])
        sees = ranks.leads or sees_lock(seen, leader[3], PATIENCE_S if text == leader[0] else OTHER_PATIENCE_S)
        all_see = ranks.gather(sees)
        if all(all_see):
            own.folder = seen
            return Storage.shared(ranks, seen)
        if self.settings.storage == "shared":
            problem = (
                f"run_dir={leader[2]} on {leader[4]} is not the same folder as {os.path.abspath(seen)} on {host}, and "
                f"storage=shared. Choose a run_dir on a disk that all machines share, such as NFS, or storage=auto."
            )
            self._end_if("" if sees else problem)
        own.folder = seen if sees else own.folder
        writers = self._writers(sees)
        leading_run = ranks.gather(run_id(own.folder) if ranks.leads else "")[0]
        claims = writers[ranks.rank] == ranks.rank and not ranks.leads
        self._end_if(self._attempt(lambda: self._claim_private(leading_run)) if claims else "")
        whole = self.settings.storage == "local" or bool(self.jobs)
        places = ranks.gather(f"{host}:{os.path.abspath(own.folder)}")
        return Storage(ranks, own.folder, tuple(writers), whole, tuple(places))

    def _claim_leading(self) -> None:
        self.own.folder, self.own.created = self.claim()
        refuse_links(self.own.folder)
        self.own.lock = RunLock(self.own.folder, self.jobs)

    def _claim_private(self, leading_run: str) -> None:
        """Locks the private folder of this machine, unless it contains another run."""
        folder = self.own.folder
        refuse_links(folder)
        if (folder / "run.json").exists() and not (self.settings.resume and run_id(folder) == leading_run):
            if not self.jobs & restarts.jobs_of(folder) or any((folder / "checkpoints").glob("[0-9]*")):
                raise ConfigError(
                    f"run_dir={folder} on {platform.node()} already contains another run, which would be overwritten. "
                    f"Choose another run_dir on this machine."
                )
            remove_unused_run(folder, created=False)  # of ranks that were lost before their first checkpoint
        self.own.lock = RunLock(folder, self.jobs)

    def _writers(self, sees: bool) -> list[int]:
        """Returns the rank that writes the folder of each rank. Machines with private folders may share one of them."""
        rank, folder = self.ranks.rank, self.own.folder
        mark = f".rank-{self.ranks.gather(os.urandom(8).hex())[0]}-"

        def leave_mark() -> None:
            try:
                self.own.created = create_folder(folder)
                (folder / f"{mark}{rank}").write_text("")
            except OSError as error:
                raise ConfigError(
                    f"run_dir={folder} on {platform.node()} cannot be written ({error.strerror}). Choose another "
                    f"run_dir on this machine."
                ) from error

        self._end_if("" if sees else self._attempt(leave_mark))
        time.sleep(LISTING_S)
        writer = 0 if sees else min(int(path.name.rpartition("-")[2]) for path in folder.glob(f"{mark}*"))
        writers = self.ranks.gather(writer)
        (folder / f"{mark}{rank}").unlink(missing_ok=True)
        return writers

    def _attempt(self, action: Callable[[], None]) -> str:
        """Calls `action` and returns the message of its ConfigError, or ""."""
        try:
            action()
        except ConfigError as error:
            return str(error)
        return ""

    def _end_if(self, problem: str) -> None:
        """Ends the start on all ranks if one of them has a problem."""
        first = next(filter(None, self.ranks.gather(problem)), "")
        if problem or (first and self.ranks.leads):
            raise ConfigError(problem or first)
        if first:
            raise SystemExit(2)


def _folder_of(settings: RunConfig) -> Path:
    """Returns the folder that the settings of this machine name, whether it exists or not."""
    if settings.resume:
        try:
            return find_run(settings.resume)
        except ConfigError:
            return Path(settings.resume).expanduser()
    return Path(settings.run_dir).expanduser()
