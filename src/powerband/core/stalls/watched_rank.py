"""WatchedRank: lets another process watch this rank, and starts that process where no launcher of powerband exists."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from powerband.core.run_folder import process_start_ticks
from powerband.core.stalls.progress import Progress, SharedPages
from powerband.core.stalls.watch import OnStall, StallWatch

PAGES_VARIABLE, COUNT_VARIABLE = "POWERBAND_PROGRESS", "POWERBAND_PROGRESS_COUNT"
"""Environment variables with which a launcher of powerband names the file of its ranks, and their number."""
DELAY_S = 2.0
"""Seconds after which a run has a watching process; shorter ones need none."""
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals to the whole job, which the watching process leaves to the rank."""


class WatchedRank:
    """Makes the progress of this process visible, from the constructor to `close`.

    Attributes:
        progress: The progress that the training loop writes.

    Args:
        stall_s: Seconds without progress that are a stall; 0 watches nothing.
        on_stall: What follows a stall: "end" or "warn".
    """

    def __init__(self, stall_s: float, on_stall: OnStall) -> None:
        path, count = os.environ.pop(PAGES_VARIABLE, ""), int(os.environ.pop(COUNT_VARIABLE, "1"))
        self.progress = Progress()
        self._ended = threading.Event()
        self._close: Callable[[], object] = self._ended.set
        rank, began = int(os.environ.get("RANK", 0)), process_start_ticks(os.getpid())
        if not stall_s or sys.platform != "linux" or began is None:  # nothing can be known without /proc
            return
        try:
            pages = SharedPages(count, path)
        except OSError:  # the launcher belongs to another user or container, so this rank has a watcher of its own
            pages, path = SharedPages(1), ""
        stacks_fd = os.memfd_create("powerband-stacks", os.MFD_CLOEXEC)
        self.progress = Progress(pages.page(int(os.environ.get("LOCAL_RANK", 0)) if path else 0))
        faulthandler.register(signal.SIGUSR2, file=stacks_fd, all_threads=True)
        world_size = int(os.environ.get("WORLD_SIZE", 1))
        self.progress.begin(rank, world_size, began, stacks_fd, time.perf_counter_ns())
        self._close = weakref.finalize(self, _end, self.progress, pages, stacks_fd, self._ended)
        if not path:
            words = (str(stall_s), on_stall)
            threading.Thread(target=_keep_watcher, args=(os.dup(pages.fd), words, self._ended), daemon=True).start()

    def close(self) -> None:
        """Ends the observation of this process."""
        self._close()


def _end(progress: Progress, pages: SharedPages, stacks_fd: int, ended: threading.Event) -> None:
    progress.end()
    ended.set()
    faulthandler.unregister(signal.SIGUSR2)
    os.close(stacks_fd)
    pages.close()


def _keep_watcher(fd: int, words: tuple[str, str], ended: threading.Event) -> None:
    """Starts the watching process after a while, and ends it with the run. `fd` is a file descriptor of the pages."""
    if ended.wait(min(DELAY_S, float(words[0]) / 4)):
        os.close(fd)
        return
    source = str(Path(__file__).parents[3])
    code = f"import sys; sys.path.insert(0, {source!r}); from powerband.core.stalls.watched_rank import main; main()"
    command = [sys.executable, "-ISc", code, str(fd), str(os.getpid()), *words]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(fd,))
    finally:
        os.close(fd)
    ended.wait()
    process.kill()
    process.wait()


def main() -> None:
    """Watches one rank until it ends: the main function of the watching process.

    Its arguments are the file descriptor of the pages, the process of the rank, `stall_s` and `on_stall`. It stays in
    the process group of the rank, so that Ctrl-Z and a scheduler suspend both.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    fd, pid, stall_s, on_stall = sys.argv[1:]
    watch = StallWatch(SharedPages(1, f"/proc/self/fd/{fd}"), float(stall_s), on_stall)  # type: ignore[arg-type]
    watch.watch(_end_of(int(pid)))


def _end_of(pid: int) -> Callable[[float], bool]:
    """Returns a function that waits for some seconds, and returns True if the process `pid` has ended."""
    began, process = process_start_ticks(pid), select.poll()

    def gone(seconds: float) -> bool:
        time.sleep(seconds)
        return began is None or process_start_ticks(pid) != began

    try:
        process.register(os.pidfd_open(pid), select.POLLIN)
    except OSError:  # an old kernel, or the process has ended already
        return gone
    return lambda seconds: bool(process.poll(1000 * seconds))
