"""Worker processes: starts, addresses and stops the worker processes from the training process.

A worker is a plain child process that runs `powerband.envs.workers.worker`. It is not a fork, and it imports the
user's script only if it needs a function of it. It inherits one end of a socket pair for commands, and the shared
memory. Each side reads an end of file when the other side has ended.
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
from collections.abc import Callable
from typing import Any

from powerband.core.errors import ConfigError
from powerband.envs.workers import channel, worker
from powerband.envs.workers.channel import Channel
from powerband.envs.workers.group import EnvGroup
from powerband.envs.workers.shared_arrays import anonymous_file
from powerband.envs.workers.supervision import EnvError

EnvCall = tuple[Callable[..., Any], dict[str, Any]]
"""A function that creates an environment, and its keyword arguments."""
CLOSE_TIMEOUT_S = 3.0
"""Seconds in which all workers together may close their environments before they are killed."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerProcess:
    """Starts a worker process, which steps environments, and represents it in the training process.

    Args:
        setup: Dict with ``env_fns``, a pickled list of (function, keyword arguments), one per environment; ``main``,
            (module name, path) of the user's script if the functions are in it, else None; ``group_kwargs``, the other
            arguments of `EnvGroup`.
        rows: Rows of its environments in the shared arrays, which have one row per environment.
        memory_fd: File descriptor of the shared memory.

    Attributes:
        pending_failures: Dicts about repaired failures of environments, which the pool has not processed yet.
    """

    def __init__(self, setup: dict[str, Any], rows: slice, memory_fd: int) -> None:
        self.pending_failures: list[dict[str, Any]] = []
        self.setup, self.rows, self.memory_fd = setup, rows, memory_fd
        self.index: int = setup["group_kwargs"]["index"]
        parent_socket, child_socket = socket.socketpair()
        # The death signal follows the thread that starts a child. Only the main thread lives as long as the process.
        die_with_parent = threading.current_thread() is threading.main_thread()
        call = f"serve({child_socket.fileno()}, {memory_fd}, {os.getpid()}, {die_with_parent})"
        environment = {**os.environ, worker.USER_PYTHONPATH: os.environ.get("PYTHONPATH", "")}
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from powerband.envs.workers.worker import serve; {call}"],
            stdin=subprocess.DEVNULL,
            stdout=2,  # the output of a simulator must not mix with that of --json
            pass_fds=(child_socket.fileno(), memory_fd),
            env={**environment, **dict.fromkeys(_THREADS, "1")},
            process_group=0,  # Ctrl-C in the terminal must reach the parent only
        )
        child_socket.close()
        self.channel = Channel(parent_socket)
        self.send(channel.CREATE, setup)

    def send(self, command: bytes, payload: Any = None) -> None:
        """Sends a command and its arguments `payload`. If the worker has ended, only `recv` raises an error."""
        with contextlib.suppress(ConnectionError):
            self.channel.send(command, payload)

    def recv(self) -> tuple[bytes, Any]:
        """Waits for a reply and returns its byte and its payload, None if it has none.

        Raises:
            EnvError: An environment failed.
            EOFError: The worker has ended.
            TimeoutError: The reply took longer than the timeout.
        """
        while (message := self.channel.recv())[0] == channel.FAILURE_NOTICE:
            self.pending_failures.append(message[1])
        reply, payload = message
        if reply == channel.FAILED:
            raise EnvError(*payload)
        return reply, payload

    def set_timeout(self, seconds: float | None) -> None:
        """Limits the waiting time of `recv`; None does not limit it."""
        self.channel.sock.settimeout(seconds)

    def restart(self) -> WorkerProcess:
        """Kills the process and returns a new one for the same environments; pending failures are kept."""
        self.process.kill()
        self.process.wait()
        self.channel.sock.close()
        successor = WorkerProcess(self.setup, self.rows, self.memory_fd)
        successor.pending_failures = self.pending_failures
        return successor


class LocalWorker:
    """Stand-in for a worker process that steps all environments in this process.

    `send` stores a command, and `recv` executes it.

    Args:
        env_fns: Pairs (function, keyword arguments), each of which creates one environment.
        rows: Rows of the environments in the shared arrays.
        group_kwargs: The other arguments of `EnvGroup`.
    """

    process = None
    memory_fd = None
    index = 0

    def __init__(self, env_fns: list[EnvCall], rows: slice, group_kwargs: dict[str, Any]) -> None:
        self.env_fns, self.rows, self.group_kwargs = env_fns, rows, group_kwargs
        self.group: EnvGroup | None = None
        self.pending_failures: list[dict[str, Any]] = []
        self._command: tuple[bytes, Any] = (channel.CREATE, None)

    def send(self, command: bytes, payload: Any = None) -> None:
        """Stores a command and its arguments for `recv`."""
        self._command = (command, payload)

    def set_timeout(self, seconds: float | None) -> None:
        """Does nothing: this process cannot interrupt itself."""

    def recv(self) -> tuple[bytes, Any]:
        """Executes the stored command; the first call creates the environments.

        Returns:
            Byte and payload of the reply.
        """
        if self.group is None:
            self.group = EnvGroup(self.env_fns, **self.group_kwargs)
            self.group.on_failure = self.pending_failures.append
            return channel.CREATED, self.group.spaces
        return self.group.handle(*self._command)


Worker = WorkerProcess | LocalWorker


def start_workers(
    env_fns: list[EnvCall],
    num_workers: int,
    first_env: int,
    episode_metrics: tuple[str, ...],
    supervised: bool,
) -> list[Worker]:
    """Starts workers, each of which creates and steps an equal share of the environments.

    The first reply of each worker contains the spaces of its environments.

    Args:
        env_fns: One (function, keyword arguments) per environment.
        num_workers: Number of processes; 0 uses this process.
        first_env: Index of the first environment among those of all ranks (processes of the training).
        episode_metrics: Names of `info` values that are read at the end of an episode.
        supervised: Replace an environment that fails in a step; otherwise the first failure raises EnvError.

    Raises:
        ConfigError: Another process cannot import a function.
    """
    if worker.importing_main:
        raise ConfigError(
            "A worker imports this script to find the function that creates environments, and this import starts them "
            "again. "
            'Put the code that runs under `if __name__ == "__main__":`, or move the function into a module.'
        )
    group_kwargs = {"first_env": first_env, "episode_metrics": episode_metrics, "supervised": supervised}
    if num_workers == 0:
        return [LocalWorker(env_fns, slice(0, len(env_fns)), {**group_kwargs, "index": 0, "first_row": 0})]
    bounds = [len(env_fns) * index // num_workers for index in range(num_workers + 1)]
    shares = [slice(first, end) for first, end in zip(bounds, bounds[1:], strict=False)]
    setups = []
    for index, rows in enumerate(shares):
        data = _pickled(env_fns[rows])
        own_kwargs = {**group_kwargs, "index": index, "first_row": rows.start}
        setups.append({"env_fns": data, "main": _user_main(data), "group_kwargs": own_kwargs})
    memory_fd = anonymous_file()
    return [WorkerProcess(setup, rows, memory_fd) for setup, rows in zip(setups, shares, strict=True)]


def stop_workers(workers: list[Worker]) -> None:
    """Ends all workers: sends a close command, waits up to 3 seconds in total, then kills those that still run."""
    processes = [each for each in workers if isinstance(each, WorkerProcess)]
    for each in workers:
        if isinstance(each, WorkerProcess):
            each.send(channel.CLOSE)
        elif each.group is not None:
            each.group.close()
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    for each in processes:
        try:
            each.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()
        each.channel.sock.close()
    if processes:
        os.close(processes[0].memory_fd)


def _pickled(env_fns: list[EnvCall]) -> bytes:
    try:
        return pickle.dumps(env_fns)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"An environment cannot be created in a worker process: {error}. Define its function at the top level of a "
            f"module (no lambda, no function inside a function) with plain keyword arguments, or use num_workers=0."
        ) from error


def _user_main(env_fns: bytes) -> tuple[str | None, str | None] | None:
    """Returns (module name, None) or (None, path) of the user's script; None if the pickled functions need no script.

    Raises:
        ConfigError: The functions are defined in an interactive session.
    """
    if b"__main__" not in env_fns:
        return None
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name, None
    path = vars(main).get("__file__")
    if path is not None:
        return None, os.path.abspath(path)
    raise ConfigError(
        "The function that creates an environment is defined in an interactive session, which a worker process cannot "
        "import. Put it into a module, or use num_workers=0."
    )
