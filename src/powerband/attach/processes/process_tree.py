"""Process tree: the processes that a command has started, from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

PYTHON = re.compile(r"^python[0-9.]*$")
"""Name of the file of an interpreter, after symbolic links."""


@dataclass
class Process:
    """A process of the command.

    Attributes:
        pid: Process id.
        began: Start time in clock ticks since boot; together with `pid` it is unique.
        command: Command line, the arguments separated by spaces.
        python: Whether the program is a Python interpreter.
        since, until: First and last time it was seen, from `time.monotonic`.
    """

    pid: int
    began: int
    command: str
    python: bool
    since: float
    until: float

    @property
    def age_s(self) -> float:
        """Seconds between the first and the last look that saw the process."""
        return self.until - self.since


class ProcessTree:
    """All processes below a first one, those that have lost their parent included.

    Args:
        root: Id of the first process, which must not have been waited for.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.seen: dict[tuple[int, int], Process] = {}
        _, began = _process_table().get(root, (0, -1))
        self._first = (root, began)  # the id alone may belong to another process later
        self._present: set[tuple[int, int]] = set()

    def look(self) -> None:
        """Reads ``/proc`` and remembers each process whose parent belongs to the command."""
        now = time.monotonic()
        table = _process_table()
        members = {pid for pid, (_, began) in table.items() if (pid, began) == self._first or (pid, began) in self.seen}
        grown = True
        while grown:
            children = {pid for pid, (parent, _) in table.items() if parent in members} - members
            grown = bool(children)
            members |= children
        self._present = {(pid, table[pid][1]) for pid in members}
        for key in self._present:
            process = self.seen.get(key)
            if process is None or now - process.since < 1.0:  # a young process may still replace its program
                command, python = _program(key[0])
                since = now if process is None else process.since
                self.seen[key] = Process(*key, command, python, since, now)
            else:
                process.until = now

    def pids(self) -> set[int]:
        """Returns the ids of the processes that the last look has seen."""
        return {pid for pid, _ in self._present}

    def alive(self) -> bool:
        """Returns whether the last look has seen a process other than the first one."""
        return any(key != self._first for key in self._present)

    def send(self, signal_number: int) -> None:
        """Sends a signal to the processes that the last look has seen, except the first one."""
        table = _process_table()
        for pid, began in self._present:
            if (pid, began) != self._first and pid in table and table[pid][1] == began:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal_number)


def _process_table() -> dict[int, tuple[int, int]]:
    """Process id -> (id of its parent, start time in ticks), without processes that have ended."""
    table = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The name of the program may contain spaces and brackets, so the fields start after its last bracket.
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                table[int(path.parent.name)] = (int(fields[1]), int(fields[19]))
    return table


def _program(pid: int) -> tuple[str, bool]:
    """Returns the command line of a process, and whether it is a Python interpreter."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        executable = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return "", False
    return " ".join(words), PYTHON.match(Path(executable).name) is not None
