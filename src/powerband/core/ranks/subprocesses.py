"""Subprocesses: starts ranks for measurements and checks, waits for them, and ends them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def start_ranks(
    commands: Sequence[Sequence[str]], outputs: Sequence[Path], environment: Mapping[str, str]
) -> list[subprocess.Popen]:
    """Starts the ranks of one process group on this machine, without the start-up time of a launcher.

    Args:
        commands: Arguments of ``python`` for each rank.
        outputs: File for stdout and stderr of each rank.
        environment: Environment variables, in addition to those of this process and those of a rank such as RANK.

    Returns:
        One process per rank. Each leads a process session of its own, which `kill_session` can end.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank, (command, output) in enumerate(zip(commands, outputs, strict=True)):
        rank_environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(len(commands)),
            "LOCAL_WORLD_SIZE": str(len(commands)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            **environment,
        }
        with output.open("wb") as sink:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-P", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    env=rank_environment,
                    start_new_session=True,
                )
            )
    return started


def wait_for_ranks(processes: list[subprocess.Popen], timeout_s: float, activity: Callable[[int], str]) -> str:
    """Waits until all ranks succeed, one rank fails, or the time limit is reached.

    Args:
        processes: One process per rank.
        timeout_s: Time limit in seconds.
        activity: Function (rank) -> text that describes what this rank did last, for the returned problem.

    Returns:
        A text with the problem, or "" on success. The caller must end the remaining processes with `kill_session`.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        states = [process.poll() for process in processes]
        for rank, status in enumerate(states):
            if status:
                return f"rank {rank} {describe_exit(status)} while {activity(rank)}; the other ranks were ended"
        if all(status == 0 for status in states):
            return ""
        time.sleep(0.05)
    waiting = [f"rank {rank} while {activity(rank)}" for rank, each in enumerate(processes) if each.poll() is None]
    return f"not done after {timeout_s:g} s: {', '.join(waiting)}; the ranks were ended"


def kill_session(process: subprocess.Popen) -> None:
    """Kills a process of `start_ranks` with its children, and waits for its end."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def describe_exit(status: int) -> str:
    """Describes the exit of a process that left no result, such as "died of SIGSEGV".

    Args:
        status: Exit status as in `subprocess.Popen`: minus the number of the signal that killed the process.
    """
    if status < 0:
        return f"died of {signal.Signals(-status).name}"
    return f"ended with status {status} and without a result"
