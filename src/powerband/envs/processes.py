"""Worker processes: started clean (no fork of this process, no import of the user's script), and always ended.

A worker is a plain child that runs `powerband.envs.worker`. It inherits two file descriptors: its end of a socket
pair, over which it is told what to do, and the shared memory. Either side sees the end of file when the other is gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from powerband.envs import worker
from powerband.envs.group import EnvError, EnvGroup
from powerband.envs.slots import anonymous_file
from powerband.envs.worker import Channel

CLOSE_S = 3.0
"""Seconds that all workers together have to close their environments before they are killed."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerProcess:
    """A worker in its own process, as the parent sees it.

    Args:
        order: ``makes``, a pickled list of (function, keyword arguments), one an environment; ``main``, the user's
            script where they need it; ``place``, the other arguments of EnvGroup.
        rows: Rows of its environments in the slots.
        memory_fd: File descriptor of the shared memory.

    Attributes:
        faults: What was said of failed environments, until somebody takes it.
    """

    def __init__(self, order: dict[str, Any], rows: slice, memory_fd: int) -> None:
        self.faults: list[dict[str, Any]] = []
        self.order, place = order, order["place"]
        self.rows, self.index, self.memory_fd = rows, place["index"], memory_fd
        here, there = socket.socketpair()
        # The death signal goes with the thread that started a child; only the main thread lives as long as the process.
        die_with_parent = threading.current_thread() is threading.main_thread()
        call = f"serve({there.fileno()}, {memory_fd}, {os.getpid()}, {die_with_parent})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from powerband.envs.worker import serve; {call}"],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a simulator prints must not mix with --json
            pass_fds=(there.fileno(), memory_fd),
            env={**environment, **dict.fromkeys(_THREADS, "1")},
            process_group=0,  # a Ctrl-C in the terminal is for the parent to handle
        )
        there.close()
        self.channel = Channel(here)
        self.send(b"M", order)

    def send(self, word: bytes, payload: Any = None) -> None:
        """Tells the worker something; that it is gone is found by `recv`."""
        with contextlib.suppress(ConnectionError):
            self.channel.send(word, payload)

    def recv(self) -> tuple[bytes, Any]:
        """Waits for the reply.

        Raises:
            EnvError: An environment failed.
            EOFError: The worker is gone.
            TimeoutError: It took longer than its `patience`.
        """
        while (reply := self.channel.recv())[0] == b"N":
            self.faults.append(reply[1])
        word, payload = reply
        if word == b"E":
            raise EnvError(*payload)
        return word, payload

    def patience(self, seconds: float) -> None:
        """From here on `recv` waits so long at the most."""
        self.channel.sock.settimeout(seconds)

    def again(self) -> WorkerProcess:
        """Ends the process, however it is, and starts another for the same environments; what it said stays said."""
        self.process.kill()
        self.process.wait()
        self.channel.sock.close()
        fresh = WorkerProcess(self.order, self.rows, self.memory_fd)
        fresh.faults = self.faults
        return fresh


class LocalWorker:
    """All environments in this process behind the same calls: `send` keeps the word, `recv` acts on it."""

    process = None
    memory_fd = None
    index = 0

    def __init__(self, makes: list[tuple[Any, dict]], rows: slice, place: dict[str, Any]) -> None:
        self.makes, self.rows, self.place = makes, rows, place
        self.group: EnvGroup | None = None
        self.faults: list[dict[str, Any]] = []
        self.order: tuple[bytes, Any] = (b"M", None)

    def send(self, word: bytes, payload: Any = None) -> None:
        self.order = (word, payload)

    def patience(self, seconds: float) -> None:
        """Nobody else can end what hangs in this process."""

    def recv(self) -> tuple[bytes, Any]:
        if self.group is None:
            self.group = EnvGroup(self.makes, **self.place)
            self.group.tell = self.faults.append
            return b"D", self.group.spaces
        return self.group.answer(*self.order)


Worker = WorkerProcess | LocalWorker


def start(
    makes: list[tuple[Any, dict]], num_workers: int, first_env: int, figures: tuple[str, ...], supervised: bool
) -> list[Worker]:
    """Starts `num_workers` workers over equal shares of `makes` (0: one in this process); each then says its spaces.

    Raises:
        ValueError: A function that no other process can import.
    """
    if worker.importing_main:
        raise ValueError(
            "this script starts environments while a worker imports it for the function that makes them: "
            'put what runs under `if __name__ == "__main__":`, or move the function into a module.'
        )
    place = {"first_env": first_env, "figures": figures, "supervised": supervised}
    if num_workers == 0:
        return [LocalWorker(makes, slice(0, len(makes)), {**place, "index": 0, "first_row": 0})]
    bounds = [len(makes) * index // num_workers for index in range(num_workers + 1)]
    shares = [slice(first, end) for first, end in zip(bounds, bounds[1:], strict=False)]
    orders = []
    for index, rows in enumerate(shares):
        data = _pickled(makes[rows])
        where = {**place, "index": index, "first_row": rows.start}
        orders.append({"makes": data, "main": _main_of_user(data), "place": where})
    memory_fd = anonymous_file()
    return [WorkerProcess(order, rows, memory_fd) for order, rows in zip(orders, shares, strict=True)]


def stop(workers: list[Worker]) -> None:
    """Ends all workers: a word, `CLOSE_S` seconds for all of them together, then a kill. Leaves nothing behind."""
    processes = [each for each in workers if each.process is not None]
    for each in workers:
        if each.process is not None:
            each.send(b"c")
        elif each.group is not None:
            each.group.close()
    deadline = time.monotonic() + CLOSE_S
    for each in processes:
        try:
            each.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()
        each.channel.sock.close()
    if processes:
        os.close(processes[0].memory_fd)


def _pickled(makes: list[tuple[Any, dict]]) -> bytes:
    try:
        return pickle.dumps(makes)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"an environment cannot be made in a worker process: {error}. Define its function at the top level of a "
            f"module (no lambda, no function inside a function) with plain keyword arguments, or use num_workers=0."
        ) from error


def _main_of_user(makes: bytes) -> tuple[str | None, str | None] | None:
    """(module name, path) of the user's script where `makes` needs it, None where it does not."""
    if b"__main__" not in makes:
        return None
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return main.__spec__.name, None
    if getattr(main, "__file__", None) is not None:
        return None, os.path.abspath(main.__file__)
    raise ValueError(
        "an environment's function was typed into an interactive session, which a worker process cannot import: "
        "put it into a module, or use num_workers=0."
    )
