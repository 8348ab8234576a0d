"""Life of a process: callbacks before and after a fork, and before the process ends or replaces itself.

A process that `multiprocessing` starts by spawn or by its fork server is a new interpreter with the same PYTHONPATH, so
``sitecustomize`` starts the instrumentation there. Only a fork needs help. A forked process of `multiprocessing` ends
with `os._exit`, which runs no `atexit` function, and `os.exec` replaces the program without an end; both are wrapped.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from powerband_attach import record
from powerband_attach.safely import safely

before_fork: list[Callable[[], Any]] = []
"""Functions that run in the parent right before a fork, such as to stop a thread. They must not raise."""
after_fork_in_parent: list[Callable[[], Any]] = []
after_fork_in_child: list[Callable[[], Any]] = []
"""Functions that run in a forked process, after its own record has begun."""
at_end: list[Callable[[], Any]] = []
"""Functions that run before the process ends or replaces itself. A process that a signal kills does not run them."""
after_failed_exec: list[Callable[[], Any]] = []
"""Functions that run when `os.exec` has failed, so that the process goes on although `at_end` has run."""

_ENDS = ("_exit", "execv", "execve")
_ended = False
_in_fork = [False]


def watch() -> None:
    """Starts to run the callbacks of this module."""
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
    atexit.register(_end)
    for name in _ENDS:
        setattr(os, name, _ending(getattr(os, name)))
    if sys.version_info >= (3, 12):
        os.fork = _forking(os.fork)


def _ending(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def ending(*args: Any, **kwargs: Any) -> Any:
        _end()
        try:
            return fn(*args, **kwargs)
        finally:  # only a failed `os.exec` returns
            _reset_end()
            for callback in after_failed_exec:
                safely(callback)()

    return ending


def _forking(fn: Callable[[], int]) -> Callable[[], int]:
    """Runs the callbacks of the parent after `os.fork`. Inside of it they come too early.

    Since Python 3.12, `os.fork` warns if the process has several threads after it, and the callbacks start one.
    """

    @functools.wraps(fn)
    def fork() -> int:
        process_id = -1
        _in_fork[0] = True
        try:
            process_id = fn()
            return process_id
        finally:
            _in_fork[0] = False
            if process_id:
                _in_parent()

    return fork


def _reset_end() -> None:
    global _ended
    _ended = False


def _end() -> None:
    global _ended
    if not _ended:
        _ended = True
        for callback in at_end:
            safely(callback)()
        record.write("end")


def _before() -> None:
    for callback in before_fork:
        safely(callback)()


def _in_parent() -> None:
    if _in_fork[0]:
        return
    for callback in after_fork_in_parent:
        safely(callback)()


def _in_child() -> None:
    _reset_end()
    safely(record.begin)("fork")
    for callback in after_fork_in_child:
        safely(callback)()
