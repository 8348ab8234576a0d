"""Restarts: what a launcher and its ranks exchange, so that ranks continue their run after a rank or machine was lost.

The elastic launcher of torch starts all ranks again with the same command line. They find the run folder of the lost
ranks, and continue it if one of the present launchers took part in that run.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from powerband.core.regular_files import read_object
from powerband.core.run_folder import PROCESSES, newest_checkpoint, process_start_ticks, restarting_jobs

JOB, FOLDER, OUTCOME = "POWERBAND_JOB", "POWERBAND_RUN_DIR", "POWERBAND_OUTCOME"
RESUMED = "POWERBAND_RESUMED"
"""Environment variables of ranks that may be restarted: the id of their launcher, the folder of a new run without
``run_dir`` ("" with it), and the file in which a rank reports a user error, after which a restart is of no use. RESUMED
is set for the ranks of every launcher: the resumed run or checkpoint, or "" for a new run."""
LAUNCHER = "POWERBAND_LAUNCHER"
"""Environment variable of all ranks: the process id of their launcher."""
STATUSES = "POWERBAND_STATUSES"
"""Environment variable of the ranks of one of several machines: the file in which each writes 0 when it begins, and the
exit status with which its run ends."""


def prepare(folder: str) -> None:
    """Sets the environment variables for the ranks of this launcher, which may restart them.

    Args:
        folder: Folder of a new run without ``run_dir``; "" otherwise.
    """
    handle, path = tempfile.mkstemp(prefix="powerband-outcome-")
    os.close(handle)
    os.environ |= {JOB: uuid.uuid4().hex, FOLDER: folder, OUTCOME: path}


def finish() -> int:
    """Removes the variables of `prepare` and returns the exit status that a rank has reported, or 0."""
    path = Path(os.environ.pop(OUTCOME))
    for name in (JOB, FOLDER):
        del os.environ[name]
    text = path.read_text()
    path.unlink()
    return int(text or 0)


def job() -> str:
    """Returns the id of the launcher that may restart this rank; "" if none does.

    This is the launcher of powerband, or a torchrun with ``--max-restarts`` and ``--rdzv-id``. A later torchrun with
    the same id is another launcher: it starts the command again, and does not restart ranks that were lost.
    """
    torchrun = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if JOB in os.environ or torchrun == "none" or os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return os.environ.get(JOB, "")
    launcher = os.getppid()
    return f"torchrun {torchrun} {platform.node()} {launcher} {process_start_ticks(launcher)}"


def new_folder() -> str:
    """Returns the folder that the launcher has chosen for a new run; "" if it has chosen none."""
    return os.environ.get(FOLDER, "")


def reported() -> bool:
    """True if a rank of this launcher has reported a user error, so that this rank must end too."""
    path = os.environ.get(OUTCOME)
    return path is not None and Path(path).exists() and bool(Path(path).read_text())


def report(status: int) -> int:
    """Reports the user error with which this rank ends, and returns the exit status for the launcher.

    A launcher restarts ranks with a status other than 0, but a user error would only occur again.
    """
    path = os.environ.get(OUTCOME)
    if path is None or status != 2:
        return status
    Path(path).write_text(str(status))
    return 0


@contextlib.contextmanager
def noted_statuses() -> Iterator[Path]:
    """Context in which the ranks that this launcher starts note their statuses in a file, see `statuses`."""
    handle, path = tempfile.mkstemp(prefix="powerband-statuses-")
    os.close(handle)
    os.environ[STATUSES] = path
    try:
        yield Path(path)
    finally:
        os.environ.pop(STATUSES, None)
        Path(path).unlink(missing_ok=True)


def note_status(status: int) -> None:
    """Tells the launcher that this rank has begun (0), or the exit status with which its run ends."""
    if path := os.environ.get(STATUSES):
        with Path(path).open("a") as file:
            file.write(f"{status}\n")


def statuses() -> list[int]:
    """Returns what the ranks of this launcher have noted; empty if none has begun."""
    path = os.environ.get(STATUSES)
    return [int(line) for line in Path(path).read_text().split()] if path else []


def jobs_of(folder: Path) -> set[str]:
    """Returns the launchers that took part in the run in `folder`, as its processes and its lock name them."""
    return restarting_jobs(read_object(folder / PROCESSES)) | restarting_jobs(read_object(folder / ".lock"))


def resumed(target: str) -> str:
    """Returns what a rank resumes if the command line names `target`, in place of this text.

    The launcher has found out which run ``last`` is. Ranks that have saved since they resumed continue with their own
    newest checkpoint: `target` may name an older one, which would be deleted meanwhile, or would make the ranks delete
    what they have learned.
    """
    target = os.environ.get(RESUMED) or target
    if not job():
        return target
    path = Path(os.path.expanduser(target)).absolute()
    for folder in (path, *path.parents):
        facts = read_object(folder / PROCESSES)
        if job() in restarting_jobs(facts) and facts.get("newest") != newest_checkpoint(folder):
            return str(folder)
    return target
