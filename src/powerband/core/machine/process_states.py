"""Process states: whether the kernel lets a process run, from ``/proc``."""

from __future__ import annotations

from pathlib import Path

STATES = {
    "T": "is stopped (state T, as after SIGSTOP)",
    "D": "waits for a disk, a network file system or a driver (state D)",
    "Z": "has ended, but nobody has collected its status (state Z)",
}
"""State in ``/proc`` -> verb phrase, for states in which a process executes no instructions."""


def process_state(pid: int) -> str:
    """State letter of process `pid` as in ``/proc``, such as R, S or T; "" if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def process_name(pid: int) -> str:
    """Short name of process `pid`; "" if it does not exist."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def bytes_transferred(pid: int) -> int:
    """Bytes that process `pid` has read and written, from disks, caches and pipes; 0 if it does not exist."""
    try:
        counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return int(counters["rchar"]) + int(counters["wchar"])
    except (OSError, ValueError, KeyError):
        return 0
