"""Record of a process: a file of JSON lines in the folder ``POWERBAND_ATTACH_DIR``.

Each line is an object with ``kind`` and ``time_ns``, the time of `time.perf_counter_ns`, which all processes of a
machine share. The first line has the kind ``start`` (a new interpreter) or ``fork`` and says which process this is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_path = ""


def begin(kind: str) -> None:
    """Creates the record of this process.

    Args:
        kind: ``start`` in a new interpreter, ``fork`` in a process that `os.fork` has created.
    """
    global _path
    folder = os.environ.get("POWERBAND_ATTACH_DIR", "")
    # One process has several records if it replaces itself by `os.exec`, so the name includes the time.
    _path = os.path.join(folder, f"{os.getpid()}-{time.perf_counter_ns()}.jsonl") if folder else ""
    write(
        kind,
        pid=os.getpid(),
        ppid=os.getppid(),
        argv=_command_line(),
        executable=sys.executable,
        python=".".join(map(str, sys.version_info[:3])),
        rank=os.environ.get("RANK", ""),
        folder=_working_folder(),
    )


def write(kind: str, **fields: Any) -> None:
    """Appends a line to the record. Errors of the disk are ignored.

    The file is open only during the write. A script may close all file descriptors, and a descriptor kept here could
    then belong to a file of the script.

    Args:
        kind: Kind of the line.
        fields: Values of JSON types; other values are written as their `repr`.
    """
    if not _path:
        return
    try:
        line = json.dumps({"kind": kind, "time_ns": time.perf_counter_ns(), **fields}, default=repr) + "\n"
        descriptor = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line.encode("utf-8", "replace"))
        finally:
            os.close(descriptor)
    except (OSError, ValueError, TypeError):
        pass


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder was deleted
        return ""


def _command_line() -> list[str]:
    """Returns the command line with the interpreter; `sys.orig_argv` is new in Python 3.10."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return file.read().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return list(getattr(sys, "orig_argv", sys.argv))
