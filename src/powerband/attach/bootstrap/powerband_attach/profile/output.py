"""Output: writes what the script has printed and Python still buffers, before the launcher ends the script."""

from __future__ import annotations

import os
import sys
from typing import Any

from powerband_attach.safely import safely

ASKED, DONE = "flush", "flushed-"
"""File of the launcher that asks for it, and start of the name of the file with which a process answers."""


_forked = [False]


def forget() -> None:
    """Notes that this process was forked."""
    _forked[0] = True


@safely
def flush_if_asked() -> None:
    """Flushes stdout and stderr once if the launcher asks for it. SIGTERM would end the process without a flush."""
    folder = os.environ.get("POWERBAND_ATTACH_DIR", "")
    answer = os.path.join(folder, DONE + str(os.getpid()))
    if not folder or not os.path.exists(os.path.join(folder, ASKED)) or os.path.exists(answer):
        return
    for stream in (sys.stdout, sys.stderr) if _owns_buffers() else ():
        if stream is not None and not getattr(stream, "closed", False):  # a worker may have closed it
            safely(stream.flush)()
    os.close(os.open(answer, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _owns_buffers() -> bool:
    """Returns whether the buffers contain only text of this process; multiprocessing flushes them before a fork."""
    module: Any = sys.modules.get("multiprocessing.process")
    return not _forked[0] or (module is not None and module.parent_process() is not None)
