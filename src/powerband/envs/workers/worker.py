"""Worker: the main function of a worker process. It imports numpy and the simulator, and no torch."""

from __future__ import annotations

import importlib
import os
import pickle
import runpy
import signal
import socket
import sys
import traceback
from typing import Any

from powerband.core.machine.parent_death import signal_at_parent_death
from powerband.envs.workers import channel
from powerband.envs.workers.channel import Channel
from powerband.envs.workers.group import EnvGroup
from powerband.envs.workers.shared_arrays import Layout, SharedArrays
from powerband.envs.workers.supervision import EnvError

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
USER_PYTHONPATH = "POWERBAND_WORKER_PYTHONPATH"
"""Environment variable of a worker with the PYTHONPATH of the user; its own one is the complete path of the parent."""
importing_main = False
"""True while a worker imports the user's script for its functions; the script must not start workers then."""


def serve(sock_fd: int, memory_fd: int, parent_pid: int, die_with_parent: bool) -> None:
    """Runs a worker process: executes the commands of the parent until it sends a close command or ends.

    Args:
        sock_fd: File descriptor of this process's end of the socket pair.
        memory_fd: File descriptor of the shared memory.
        parent_pid: Process id of the parent.
        die_with_parent: Let the kernel kill this process when the parent's thread that started it ends.
    """
    # Only the parent ends a run. A signal to all processes of a job must not end the simulators before it has saved.
    # Programs that a simulator starts do not inherit a handler, while they would inherit SIG_IGN and not end either.
    for number in ENDING_SIGNALS:
        signal.signal(number, _stay)
    # This process has the complete path already. Programs that a simulator starts get the one of the user.
    path = os.environ.pop(USER_PYTHONPATH)
    if path:
        os.environ["PYTHONPATH"] = path
    else:
        del os.environ["PYTHONPATH"]
    if die_with_parent:
        signal_at_parent_death(signal.SIGKILL)  # also ends a worker that hangs in C code
        if os.getppid() != parent_pid:
            return
    connection = socket.socket(fileno=sock_fd)
    os.register_at_fork(after_in_child=lambda: _leave(connection))
    parent = Channel(connection)
    try:
        group = _make_group(parent)
        while group is not None:
            command, payload = parent.recv()
            if command == channel.CLOSE:
                group.close()
                return
            if command == channel.BIND:
                payload = _map_arrays(payload, memory_fd)
            try:
                reply = group.handle(command, payload)
            except EnvError as error:
                reply = channel.FAILED, (str(error), error.facts)
            parent.send(*reply)
    except (EOFError, ConnectionError):
        return


def _stay(number: int, frame: object) -> None:
    """Handles a signal that ends other processes of the job."""


def _leave(connection: socket.socket) -> None:
    """Lets a process that a simulator forks end by signals, and lets the parent see the end of this worker."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    connection.close()


def _make_group(parent: Channel) -> EnvGroup | None:
    """Receives the first command and creates the environments; None if that failed."""
    _, setup = parent.recv()
    try:
        if setup["main"] is not None:
            _import_main(*setup["main"])
        group = EnvGroup(pickle.loads(setup["env_fns"]), **setup["group_kwargs"])
    except EnvError as error:
        parent.send(channel.FAILED, (str(error), error.facts))
        return None
    except Exception as error:
        first: int = setup["group_kwargs"]["first_env"] + setup["group_kwargs"]["first_row"]
        refused = isinstance(error, (AttributeError, ImportError, ValueError))
        reason = str(error) if refused else traceback.format_exc()
        facts: dict[str, Any] = {"env_id": first, "doing": "make", "refused": refused}
        parent.send(channel.FAILED, (f"Environment {first} could not be created: {reason}", facts))
        return None
    group.on_failure = lambda facts: parent.send(channel.FAILURE_NOTICE, facts)
    parent.send(channel.CREATED, group.spaces)
    return group


def _map_arrays(fields: Layout, memory_fd: int) -> SharedArrays:
    shared_arrays = SharedArrays(fields, memory_fd)
    os.close(memory_fd)
    return shared_arrays


def _import_main(name: str | None, path: str | None) -> None:
    """Makes the functions of the user's script importable: loads the script under another name than ``__main__``.

    Args:
        name: Module name of a script that was started with ``python -m``.
        path: Path of any other script.
    """
    global importing_main
    importing_main = True
    if name is not None:
        sys.modules["__main__"] = importlib.import_module(name)
    else:
        assert path is not None
        sys.modules["__main__"].__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
    importing_main = False
