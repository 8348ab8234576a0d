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
import threading
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
before_exit: list[Callable[[], Any]] = []
"""Functions that run after those of `at_end`, before `os._exit` ends the process."""
after_failed_exec: list[Callable[[], Any]] = []
"""Functions that run when `os.exec` has failed, so that the process goes on although `at_end` has run."""

_ENDS = ("_exit", "execv", "execve")
_ended = False
_LONGEST_FORK_S = 10.0
"""Seconds for which a fork waits for one of another thread. It then goes on, because nothing may stop the script."""
_fork_lock = threading.RLock()
"""Lock that a thread holds from the callbacks before its fork to those after it. A signal handler may fork again."""


class _ThisThread(threading.local):
    """State of each thread: whether it is inside of the function that `_forking` returns."""

    in_fork = False


_this_thread = _ThisThread()


def watch() -> None:
    """Starts to run the callbacks of this module."""
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
    atexit.register(_end)
    for name in _ENDS:
        setattr(os, name, _ending(name, getattr(os, name)))
    if sys.version_info >= (3, 12):
        os.fork = _forking(os.fork)


def _ending(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def ending(*args: Any, **kwargs: Any) -> Any:
        _end()
        if name == "_exit":
            for callback in before_exit:
                safely(callback)()
        try:
            return fn(*args, **kwargs)
        finally:  # only a failed `os.exec` returns
            _reset_end()
            for callback in after_failed_exec:
                safely(callback)()

    ending.__module__ = "os"  # so that pickle finds it there, as the function that it replaces
    return ending


def _forking(fn: Callable[[], int]) -> Callable[[], int]:
    """Runs the callbacks of the parent after `os.fork`. Inside of it they come too early.

    Since Python 3.12, `os.fork` warns if the process has several threads after it, and the callbacks start one.
    """

    @functools.wraps(fn)
    def fork() -> int:
        process_id = -1
        _this_thread.in_fork = True
        try:
            process_id = fn()
            return process_id
        finally:
            _this_thread.in_fork = False
            if process_id:
                _in_parent()

    fork.__module__ = "os"
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
    _fork_lock.acquire(True, _LONGEST_FORK_S)
    for callback in before_fork:
        safely(callback)()


def _in_parent() -> None:
    if _this_thread.in_fork:
        return
    for callback in after_fork_in_parent:
        safely(callback)()
    try:
        _fork_lock.release()
    except RuntimeError:  # this thread does not hold it, for example because an audit hook has refused the fork
        pass


def _in_child() -> None:
    global _fork_lock
    _fork_lock = threading.RLock()
    _reset_end()
    safely(record.begin)("fork")
    for callback in after_fork_in_child:
        safely(callback)()
