"""Launch: runs a command line with the instrumentation of `bootstrap` in all of its Python processes.

The command keeps the terminal, its input and output, and its process group. Signals that this process gets are passed
on, except those that the terminal sends to the whole group.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from powerband.attach.processes.process_tree import Process, ProcessTree
from powerband.attach.processes.records import Record, read_records
from powerband.core.errors import ConfigError
from powerband.core.machine.device import cores

BOOTSTRAP = Path(__file__).parents[1] / "bootstrap"
"""Folder that goes to the front of PYTHONPATH; its ``sitecustomize`` starts the instrumentation."""
TOOL, FOLDER, CORES = "POWERBAND_ATTACH", "POWERBAND_ATTACH_DIR", "POWERBAND_ATTACH_CORES"
"""Environment variables of the instrumented processes: the tool (empty switches it off), the folder of records, and the
cores of the machine that the script may use."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
FROM_KERNEL = 0x80
"""Value of ``si_code`` of a signal that the kernel sent, such as for Ctrl-C: the whole process group has it."""
LOOK_S = 0.25
"""Seconds between two looks at the process tree and at the records."""
FLUSH_S = 1.0
"""Seconds for the output that processes buffer, before their end."""
PROBE_S = 8.0
"""Seconds for the probe of the updates, before the end of the script."""
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
SILENT_AFTER_S = 1.5
"""Age in seconds at which a Python process without a record counts as one that never reports."""


@dataclass
class Launched:
    """A running command line, and the processes and records that belong to it.

    Attributes:
        folder: Folder of the records, one file of JSON lines per process.
        popen: The first process.
        tree: All processes that the command has started.
        began: Time of the start, from `time.monotonic`.
        renamed: A path in the records, such as that of a copy, and the path that replaces it.
        ended_by_us: Whether `end` has ended the command, so that its status means nothing.
        instrumented: Whether its Python processes write records.
    """

    folder: Path
    popen: subprocess.Popen[bytes]
    tree: ProcessTree
    began: float = field(default_factory=time.monotonic)
    renamed: tuple[str, str] = ("", "")
    ended_by_us: bool = False
    instrumented: bool = True

    def wait(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Waits for the end of the command, and passes signals on meanwhile.

        Args:
            until: Called every `LOOK_S` seconds; True ends the waiting.

        Returns:
            True if the command has ended, False if `until` was true.
        """
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
        try:
            while self.popen.poll() is None:
                self.tree.look()
                if until():
                    return False
                arrived = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, LOOK_S)
                if arrived is not None and arrived.si_signo != signal.SIGCHLD and arrived.si_code != FROM_KERNEL:
                    self.popen.send_signal(arrived.si_signo)
            return True
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def flush_output(self) -> None:
        """Lets the processes that measure write what they have printed and still buffer, for `FLUSH_S` at most."""
        self.tree.look()
        (self.folder / "flush").touch()
        limit = time.monotonic() + FLUSH_S
        waiting = {record.pid for record in self.records()} & self.tree.pids()
        while waiting and self.popen.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
            waiting = {pid for pid in waiting if not (self.folder / f"flushed-{pid}").exists()}

    def probe(self) -> None:
        """Lets the processes that train probe their updates, for `PROBE_S` at most."""
        self.tree.look()
        training = {record.pid for record in self.records() if record.updates} & self.tree.pids()
        (self.folder / "probe").touch()
        limit = time.monotonic() + PROBE_S
        while training and self.popen.poll() is None and time.monotonic() < limit:
            time.sleep(0.1)
            self.tree.look()
            training &= self.tree.pids() - {record.pid for record in self.records() if record.of_kind("probed")}

    def end(self) -> None:
        """Ends all processes of the command: by SIGTERM, and by SIGKILL those left after `GRACE_S`."""
        self.tree.look()
        self.ended_by_us = self.popen.poll() is None
        if self.ended_by_us:
            self.popen.terminate()
        self.tree.send(signal.SIGTERM)  # at once, because workers that lose their parent print tracebacks
        limit = time.monotonic() + GRACE_S
        while time.monotonic() < limit and (self.popen.poll() is None or self.tree.alive()):
            time.sleep(0.05)
            self.tree.look()
        self.tree.send(signal.SIGKILL)
        self.popen.kill()  # `tree.send` leaves the first process out
        self.popen.wait()

    @property
    def status(self) -> int:
        """Exit status for the shell: the command's own, 128 + signal if a signal ended it, 0 if `end` ended it."""
        if self.ended_by_us:
            return 0
        code = self.popen.wait()
        return 128 - code if code < 0 else code

    def records(self) -> list[Record]:
        """Reads the records that the processes have written so far, the oldest process first."""
        return read_records(self.folder, self.renamed)

    def silent(self) -> list[Process]:
        """Returns the Python processes of the command that never reported, such as those with the flag -I or -E."""
        reported = {record.pid for record in self.records()}
        return [
            process
            for process in self.tree.seen.values()
            if process.python and process.age_s >= SILENT_AFTER_S and process.pid not in reported
        ]


def launch(
    command: Sequence[str],
    tool: str,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
) -> Launched:
    """Starts a command line with the instrumentation.

    Args:
        command: Program and its arguments, such as ``["python", "train.py"]``.
        tool: ``profile``, ``audit`` or ``trial``; "" starts the command without instrumentation, and so does an empty
            environment variable `TOOL`.
        folder: Existing folder for the records.
        variables: Environment variables to add for the command.
        cwd: Working folder; None keeps that of this process.
        stdin, stdout, stderr: As for `subprocess.Popen`; None means those of this process.

    Raises:
        ConfigError: The program does not exist or cannot be started.
    """
    environment = {**os.environ, **(variables or {})}
    instrumented = bool(tool) and not switched_off()
    if instrumented:
        paths = [str(BOOTSTRAP), *filter(None, [environment.get("PYTHONPATH", "")])]
        environment |= {TOOL: tool, FOLDER: str(folder.resolve()), "PYTHONPATH": os.pathsep.join(paths)}
        environment[CORES] = str(cores())
    try:
        popen = subprocess.Popen(list(command), env=environment, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
    except OSError as error:
        found = shutil.which(command[0])
        reason = error.strerror or str(error)
        fix = (
            f"Check the program {found}."
            if found
            else "Write it as you would without powerband, such as -- python train.py."
        )
        raise ConfigError(f"The command {command[0]!r} cannot be started: {reason}. {fix}") from error
    return Launched(folder, popen, ProcessTree(popen.pid), instrumented=instrumented)


def switched_off() -> bool:
    """Returns whether the user has switched the instrumentation off, by an empty environment variable `TOOL`."""
    return os.environ.get(TOOL) == ""


def refuse_if_switched_off(command: str) -> None:
    """Raises ConfigError if a command that needs the instrumentation would run without it."""
    if switched_off():
        raise ConfigError(f"{TOOL} is empty, which switches the instrumentation off. Unset it for {command}.")
