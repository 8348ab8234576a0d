"""RunLock: one process at a time writes into a run folder, also on disks that several machines share.

The lock is a file that names its holder. It is created with a hard link, which is atomic on network file systems too.
The holder touches it regularly; another process may remove it if the holder's process has ended or if it has not been
touched for some time. The age is measured between two files on the same disk, so clocks of machines may differ.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError
from powerband.core.run_folder import process_facts, process_start_ticks

RENEW_S, STALE_S = 15.0, 120.0
"""Seconds between two touches of a lock, and seconds without a touch after which its holder counts as gone."""
NAME = ".lock"
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class RunLock:
    """Lock on a run folder, held from the constructor to `release`.

    Attributes:
        lost: True if another process has taken the lock, for example after this machine had slept.

    Args:
        folder: The run folder.
        jobs: Ids of the launchers of this run. A lock of the same launchers is replaced: they have restarted the ranks.

    Raises:
        ConfigError: Another process holds the lock. The message names it.
    """

    def __init__(self, folder: Path, jobs: Collection[str] = ()) -> None:
        self.folder, self.path, self.lost = folder, folder / NAME, False
        self.token = uuid.uuid4().hex
        self._facts = {**process_facts(), "place": _place(), "token": self.token, "jobs": sorted(jobs)}
        self._ended = threading.Event()
        own = folder / f"{NAME}-{self.token}"
        try:
            own.write_text(json.dumps(self._facts))
            self._take(own)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be written ({error.strerror or error}). Correct its permissions. Or choose another "
                f"run_dir for a new run; to resume a run, copy its folder and resume the copy."
            ) from error
        finally:
            with contextlib.suppress(OSError):
                own.unlink(missing_ok=True)
        self._renewal = threading.Thread(target=self._renew, name="run lock", daemon=True)
        self._renewal.start()

    def _take(self, own: Path) -> None:
        for _ in range(3):  # the lock of an ended process is removed, and another process may be faster
            with contextlib.suppress(FileExistsError):
                self._create(own)
                return
            holder = _holder(self.path)
            if holder is not None and self._is_held(holder, own):
                raise ConfigError(_message(self.folder, holder))
            self._remove(holder)
        raise ConfigError(f"{self.folder} is being opened by several processes at once. Start one of them again.")

    def _create(self, own: Path) -> None:
        """Creates the lock, or raises FileExistsError."""
        try:
            os.link(own, self.path)
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            with open(self.path, "x", encoding="utf-8") as file:
                file.write(json.dumps(self._facts))

    def _is_held(self, holder: dict[str, Any], own: Path) -> bool:
        """True if the holder may still be writing."""
        if set(holder.get("jobs", [])) & set(self._facts["jobs"]):
            return False
        if holder.get("place") == self._facts["place"] and holder["began"] is not None:  # None without /proc
            return process_start_ticks(holder["pid"]) == holder["began"]
        with contextlib.suppress(OSError):
            os.utime(own)
            return own.stat().st_mtime - self.path.stat().st_mtime < STALE_S
        return False

    def _remove(self, holder: dict[str, Any] | None) -> None:
        """Removes the lock of `holder`, unless another process has replaced it meanwhile."""
        aside = self.folder / f"{NAME}-{self.token}-removed"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, aside)
            if _holder(aside) != holder:
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self.path)
            aside.unlink()

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            with contextlib.suppress(OSError):
                if not self.is_held():
                    return
                os.utime(self.path)

    def is_held(self) -> bool:
        """Reads the lock: True if it is still this process's. Otherwise sets `lost`.

        A lock that cannot be read at present, as in a short failure of a network file system, counts as held.
        """
        with contextlib.suppress(OSError):
            if (_read(self.path) or {}).get("token") != self.token:
                self.lost = True
        return not self.lost

    def release(self) -> None:
        """Removes the lock, if it is still this process's. Further calls do nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._renewal.join()
        with contextlib.suppress(OSError):
            if self.is_held():
                self.path.unlink()


def sees_lock(folder: Path, token: str, patience_s: float = 5.0) -> bool:
    """True if the lock in `folder` contains `token`, the random id of the lock's holder.

    A network file system may show the lock late, so the function waits up to `patience_s` seconds for it.
    """
    deadline = time.monotonic() + patience_s
    while (_holder(folder / NAME) or {}).get("token") != token:
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(OSError):
            os.listdir(folder)  # lets a network file system read the folder again
        time.sleep(0.1)
    return True


def _place() -> list[str]:
    """Identifies what a process id refers to: the machine since its last start, and the container."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return [process_facts()["hostname"], boot, os.readlink("/proc/self/ns/pid")]
    return [process_facts()["hostname"]]


def _holder(path: Path) -> dict[str, Any] | None:
    """Facts of the process that holds the lock; None if there is no lock, or it cannot be read or is damaged."""
    with contextlib.suppress(OSError):
        return _read(path)
    return None


def _read(path: Path) -> dict[str, Any] | None:
    """Reads the facts of the process that holds the lock; None if there is no lock or it is damaged.

    Raises:
        OSError: The file system has failed.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return facts if type(facts["pid"]) is int and facts["pid"] > 0 and "began" in facts else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _message(folder: Path, holder: dict[str, Any]) -> str:
    return (
        f"{folder} is in use by process {holder['pid']} on {str(holder.get('hostname'))[:80]}. Two runs must not write "
        f"into one folder. Wait for the end of that process, stop it, or choose another run_dir."
    )
