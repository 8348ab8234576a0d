"""ThreadPool: threads that share the calls of one function, for kernels that release Python's global lock."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

Call = tuple[Callable[..., object], Iterator[tuple[int, ...]]]
"""A function, and the arguments of the calls that are left."""


class ThreadPool:
    """Threads that share calls of one function. The thread that calls `wait` executes calls, instead of sleeping.

    Args:
        count: Number of threads, including the waiting thread. With 1, one other thread executes the calls, so that
            they start before `wait`.
    """

    def __init__(self, count: int) -> None:
        self.count, self.others = count, max(1, count - 1)
        self.pending: Call | None = None
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for _ in range(self.others):
            threading.Thread(target=_work, args=(self._calls, self._done), daemon=True).start()

    def submit(self, function: Callable[..., object], arguments: list[tuple[int, ...]]) -> None:
        """Starts calls of `function`, one for each tuple of arguments, in any order."""
        assert self.pending is None, "submit twice without wait"
        self.pending = (function, iter(arguments))
        for _ in range(self.others):
            self._calls.put(self.pending)

    def wait(self) -> None:
        """Waits until all calls have returned.

        Raises:
            BaseException: One of the calls raised it.
        """
        if self.pending is not None:
            errors = [_take(*self.pending)] if self.count > 1 else []
            errors += [self._done.get() for _ in range(self.others)]
            self.pending = None
            for error in filter(None, errors):
                raise error

    def close(self) -> None:
        """Waits for pending calls and ends the threads; may be called again."""
        self.wait()
        for _ in range(self.others):
            self._calls.put(None)
        self.others = 0


def _take(function: Callable[..., object], arguments: Iterator[tuple[int, ...]]) -> BaseException | None:
    """Calls the function until no arguments are left; returns the exception that a call raised, or None."""
    try:
        for values in arguments:
            function(*values)
    except BaseException as error:
        return error
    return None


def _work(calls: queue.SimpleQueue[Call | None], done: queue.SimpleQueue[BaseException | None]) -> None:
    """Executes calls in a thread until `calls` contains None; puts the result of `_take` into `done`."""
    while (call := calls.get()) is not None:
        done.put(_take(*call))
