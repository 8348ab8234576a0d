"""Progress: what a rank does at the moment, in shared memory, where a watching process reads it.

Each rank has one page of a file in memory: its process, its current phase with the time at which it began, and its
counters. A training loop stores one number per change of its phase, so a rank that hangs need not cooperate.
"""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import dataclass

PAGE = 4096
"""Bytes of a rank: words of 64 bits, then names of phases, then the path of the run folder."""
WORDS, NAMES_AT, NAME_BYTES, NAMES, FOLDER_AT = 16, 128, 24, 64, 2048
BEAT, PID, BEGAN, STACKS_FD, RANK, WORLD_SIZE, WAITING, ENV_STEPS, UPDATES, PATIENCE_MS, EVALUATOR = range(11)
"""Places of the words."""
PHASE_SHIFT = 57
"""The word BEAT holds the index of the phase from this bit on, and the nanoseconds of the monotonic clock below it.

The clock begins at the start of the machine, and fits for four and a half years."""
START, OTHER, END = "start", "other", "end"
"""Phases before, within and after the training loop, outside of all spans of the clock. They have index 0."""
COLLECTIVES = "collectives"
"""Account in which a rank waits for the others."""


class SharedPages:
    """A file in memory with one page per rank, which other processes map by its path.

    Args:
        count: Number of ranks.
        path: Path of an existing file; "" creates one.
    """

    def __init__(self, count: int, path: str = "") -> None:
        self.count, self.fd = count, -1
        if path:
            self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        elif sys.platform == "linux":
            self.fd = os.memfd_create("powerband-progress", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, PAGE * count)
        self._map = mmap.mmap(self.fd, PAGE * count)

    @property
    def path(self) -> str:
        """Path by which the processes of this user open the file while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def page(self, index: int) -> memoryview:
        """The page of the rank with this local index."""
        return memoryview(self._map)[PAGE * index : PAGE * (index + 1)]

    def close(self) -> None:
        """Closes the file; pages that are still in use stay mapped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Progress:
    """Writes the progress of this rank into its page.

    Attributes:
        beat: Writable view of the word BEAT, for the phase clock: ``beat[0] = perf_counter_ns() + phase(name)``.
        waiting: Context manager around a collective operation, in which this rank may wait for the others.

    Args:
        page: Page of this rank; None keeps the progress in this process, where nothing watches it.
    """

    def __init__(self, page: memoryview | None = None) -> None:
        self._page = memoryview(bytearray(PAGE)) if page is None else page
        self._words = self._page[: 8 * WORDS].cast("q")
        self.beat = self._words[BEAT : BEAT + 1]
        self.waiting = Waiting(self._words)
        self._names: dict[str, int] = {}
        self._write(NAMES_AT, START.encode())

    def begin(self, rank: int, world_size: int, began: int, stacks_fd: int, now_ns: int) -> None:
        """Makes this process known to the watching process.

        Args:
            rank: Global index of this rank.
            world_size: Number of ranks of the run.
            began: Start of this process in clock ticks after boot.
            stacks_fd: File descriptor into which SIGUSR2 writes the stacks of this process.
            now_ns: Nanoseconds of the monotonic clock.
        """
        self._words[PID] = 0
        for word in range(WORDS):  # a rank that was killed may have left its counters
            self._words[word] = 0
        self._words[RANK], self._words[WORLD_SIZE] = rank, world_size
        self._words[BEGAN], self._words[STACKS_FD] = began, stacks_fd
        self.beat[0] = now_ns
        self._words[PID] = os.getpid()  # last, because a page with a process is read

    def set_rank(self, rank: int, world_size: int) -> None:
        """Changes the index of this rank and the number of ranks, after the ranks have agreed on them."""
        self._words[RANK], self._words[WORLD_SIZE] = rank, world_size

    def end(self) -> None:
        """Ends the observation of this process."""
        self._words[PID] = 0

    def phase(self, name: str) -> int:
        """Returns the number that stands for a phase in `beat`; phases after the 63rd count as ``other``."""
        if name not in self._names:
            index = len(self._names) + 1 if name != OTHER else 0
            self._names[name] = index if index < NAMES else 0
            if 0 < index < NAMES:
                self._write(NAMES_AT + NAME_BYTES * index, name.encode()[: NAME_BYTES - 1])
        return self._names[name] << PHASE_SHIFT

    def loop_begins(self) -> None:
        """From now on, the time outside of all spans is ``other``; before, it is ``start``."""
        self._write(NAMES_AT, OTHER.encode())

    def loop_ends(self) -> None:
        """From now on, the time outside of all spans is ``end``."""
        self._write(NAMES_AT, END.encode())

    def set_folder(self, folder: str) -> None:
        """Names the run folder, into which the watching process writes what it has found."""
        path = os.fsencode(os.path.abspath(folder))
        self._write(FOLDER_AT, path if len(path) < PAGE - FOLDER_AT else b"")

    def allow_wait(self, seconds: float) -> None:
        """Sets the seconds after which simulators that do not answer are replaced, and the rank continues."""
        self._words[PATIENCE_MS] = int(min(seconds, 1e9) * 1000)

    def set_evaluator(self, pid: int) -> None:
        """Names the process that evaluates for this rank, whose work is no progress of the rank; 0 if there is none."""
        self._words[EVALUATOR] = pid

    def iteration(self, env_steps: int, updates: int) -> None:
        """Ends an iteration with these environment steps in total, and these further updates."""
        self._words[ENV_STEPS] = env_steps
        self._words[UPDATES] += updates

    def _write(self, start: int, text: bytes) -> None:
        self._page[start : start + len(text) + 1] = text + b"\0"


class Waiting:
    """Context manager that marks the rank as waiting for the other ranks."""

    __slots__ = ("words",)

    def __init__(self, words: memoryview) -> None:
        self.words = words

    def __enter__(self) -> None:
        self.words[WAITING] = 1

    def __exit__(self, *error: object) -> None:
        self.words[WAITING] = 0


@dataclass(frozen=True)
class RankProgress:
    """Progress of one rank at one moment, as another process reads it.

    Attributes:
        rank: Global index of the rank.
        world_size: Number of ranks of the run.
        pid, began: Its process, and the start of that in clock ticks after boot.
        stacks_fd: File descriptor of that process into which SIGUSR2 writes its stacks.
        phase: Name of its current phase.
        beat_ns: Start of the phase, nanoseconds of the monotonic clock.
        waiting: True if it waits for other ranks in a collective operation.
        env_steps: Environment steps of the run.
        updates: Updates since the start of this process.
        patience_s: Seconds after which it replaces simulators that do not answer.
        folder: The run folder; "" before it is known.
        evaluator: Process that evaluates for the rank; 0 if there is none.
    """

    rank: int
    world_size: int
    pid: int
    began: int
    stacks_fd: int
    phase: str
    beat_ns: int
    waiting: bool
    env_steps: int
    updates: int
    patience_s: float
    folder: str
    evaluator: int = 0

    @classmethod
    def read(cls, page: memoryview) -> RankProgress | None:
        """Reads the page of a rank; None before the rank has started and after its end."""
        words = page[: 8 * WORDS].cast("q")
        beat = words[BEAT]
        if not words[PID]:
            return None
        phase = _text(page, NAMES_AT + NAME_BYTES * (beat >> PHASE_SHIFT), NAME_BYTES)
        return cls(
            words[RANK],
            words[WORLD_SIZE],
            words[PID],
            words[BEGAN],
            words[STACKS_FD],
            phase,
            beat & ((1 << PHASE_SHIFT) - 1),
            bool(words[WAITING]) or phase == COLLECTIVES,
            words[ENV_STEPS],
            words[UPDATES],
            words[PATIENCE_MS] / 1000,
            _text(page, FOLDER_AT, PAGE - FOLDER_AT),
            words[EVALUATOR],
        )


def _text(page: memoryview, start: int, size: int) -> str:
    return bytes(page[start : start + size]).split(b"\0", 1)[0].decode(errors="surrogateescape")
