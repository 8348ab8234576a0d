"""Children: processes that this one starts beside its own work, as ranks or for a question; none outlives its use."""

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
    """Starts ranks of this machine that find one another, without the seconds that a launcher takes to start itself.

    Args:
        commands: What each rank runs, the words behind ``python``.
        outputs: Where each rank's stdout and stderr go.
        environment: Variables that they are given beside this process's and those of a rank.

    Returns:
        One process a rank; each leads a session, for `kill_session`.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank, (command, output) in enumerate(zip(commands, outputs, strict=True)):
        own = {
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
                    [sys.executable, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    env=own,
                    start_new_session=True,
                )
            )
    return started


def wait_for_ranks(processes: list[subprocess.Popen], timeout_s: float, doing: Callable[[int], str]) -> str:
    """Waits until all ranks have ended well, or one has not, or the time is over.

    Args:
        processes: One a rank.
        timeout_s: Seconds that they have.
        doing: What a rank was doing last, for the message.

    Returns:
        What went wrong, "" for nothing. What still runs is the caller's to `kill_session`.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        states = [process.poll() for process in processes]
        for rank, status in enumerate(states):
            if status:
                return f"rank {rank} {describe_exit(status)} while {doing(rank)}; the other rank was ended"
        if all(status == 0 for status in states):
            return ""
        time.sleep(0.05)
    waiting = [f"rank {rank} while {doing(rank)}" for rank, each in enumerate(processes) if each.poll() is None]
    return f"not done after {timeout_s:g} s: {', '.join(waiting)}; the ranks were ended"


def kill_session(process: subprocess.Popen) -> None:
    """Kills a process that leads a session, and what it started, where any of it is left; returns when it is gone."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def describe_exit(status: int) -> str:
    """How a process ended, in words: "died of SIGSEGV", "ended with status 1"."""
    if status < 0:
        return f"died of {signal.Signals(-status).name}"
    return f"ended with status {status} and without an answer"
