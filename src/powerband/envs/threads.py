"""Threads: calls of one function shared out, for kernels that let go of Python's lock."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator


class Threads:
    """Threads that share out calls of one function; the one that waits takes its part instead of sleeping.

    Args:
        count: Of threads, that which waits among them; a lone one works beside it, so that something is begun.
    """

    def __init__(self, count: int) -> None:
        self.count, self.others, self.begun = count, max(1, count - 1), None
        self._todo, self._done = queue.SimpleQueue(), queue.SimpleQueue()
        for _ in range(self.others):
            threading.Thread(target=_work, args=(self._todo, self._done), daemon=True).start()

    def begin(self, call: Callable[..., object], shares: list[tuple[int, ...]]) -> None:
        """Calls `call` with the arguments of each share, in any order."""
        assert self.begun is None, "what was begun is waited for first"
        self.begun = (call, iter(shares))
        for _ in range(self.others):
            self._todo.put(self.begun)

    def wait(self) -> None:
        """Until all calls have returned; raises what one of them raised."""
        if self.begun is not None:
            failed = [_take(*self.begun)] if self.count > 1 else []
            failed += [self._done.get() for _ in range(self.others)]
            self.begun = None
            for error in filter(None, failed):
                raise error

    def close(self) -> None:
        """Waits for what was begun; may be called again."""
        self.wait()
        for _ in range(self.others):
            self._todo.put(None)
        self.others = 0


def _take(call: Callable[..., object], shares: Iterator[tuple[int, ...]]) -> BaseException | None:
    """Calls until no share is left; what a call raised."""
    try:
        for share in shares:
            call(*share)
    except BaseException as error:
        return error
    return None


def _work(todo: queue.SimpleQueue, done: queue.SimpleQueue) -> None:
    while (given := todo.get()) is not None:
        done.put(_take(*given))
