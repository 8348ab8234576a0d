"""StallReport: says in one sentence which rank makes no progress, writes the stacks of all ranks, and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from powerband.core.machine.process_states import STATES, process_name, process_state
from powerband.core.machine.utilisation import process_tree
from powerband.core.regular_files import replace_text
from powerband.core.run_folder import STALL_FILE, process_start_ticks, write_end_reason
from powerband.core.stalls.observation import Observation

END_SIGNAL = signal.SIGALRM
"""Signal that ends the ranks. The status of the run is 128 plus its number, 142, which no other end has."""
STACK_S, WRITE_S, END_S = 2.0, 5.0, 5.0
"""Seconds for the stacks of all ranks, for the files in the run folder, and until a rank is killed."""
STACKS = "stacks"
"""Folder in the run folder with the stacks of each rank."""
SHOWN_RANKS = 8


class StallReport:
    """Report of one stall.

    Args:
        cause: The rank that the others wait for; None if all wait.
        ranks: All ranks of this machine.
        others: Ranks of other machines about which this one has news.
        silent_s: Seconds without progress.
    """

    def __init__(
        self,
        cause: Observation | None,
        ranks: Sequence[Observation],
        others: Sequence[Observation],
        silent_s: float,
    ) -> None:
        self.cause, self.ranks = cause, ranks
        self.since_s = time.time() - silent_s
        self.began = time.monotonic() - silent_s
        folders = [each.progress.folder for each in ranks if each.progress.folder]
        self.folder = Path(folders[0]) if folders else None
        self.sentence = _sentence(cause, [*ranks, *others], silent_s)

    def publish(self, ends: bool, may_end: bool, restarts: bool = False) -> None:
        """Prints the stall and writes it, with the stacks of all ranks, into the run folder.

        Args:
            ends: The run ends now.
            may_end: The run ends if it does not continue soon.
            restarts: The launcher starts ranks that have ended again, as often as the setting max_restarts allows.
        """
        end = "its ranks end and start again from the last checkpoint (max_restarts)" if restarts else "it ends"
        next_step = f"The run waits a little longer, then {end}." if may_end else ""
        if ends:
            next_step = f"The run stops here: {end}." if restarts else "The run ends."
        stacks = _take_stacks(self.ranks)
        target = (self.folder or Path(tempfile.mkdtemp(prefix="powerband-"))) / STACKS
        parts = [self.sentence, next_step, f"Stacks: {target}.", _advice(self.folder) if ends and not restarts else ""]
        text = " ".join(filter(None, parts))
        _with_limit(lambda: _print(text), lambda: self._write(target, stacks))

    def withdraw(self) -> None:
        """Says that the run continues. The file goes first: a reader of the line must not find the stall on disk."""
        text = f"the ranks make progress again after {time.monotonic() - self.began:.0f} s."
        self._remove_file()
        _with_limit(lambda: _print(text))

    def end(self) -> None:
        """Ends all ranks of this machine, and writes the reason into the run folder."""
        if self.folder is not None:
            folder = self.folder
            _with_limit(lambda: write_end_reason(folder, f"stalled: {self.sentence}"))
        self._remove_file()
        _end_ranks([(each.progress.pid, each.progress.began) for each in self.ranks])

    def _remove_file(self) -> None:
        if self.folder is not None:
            path = self.folder / STALL_FILE
            _with_limit(lambda: path.unlink(missing_ok=True))

    def _write(self, target: Path, stacks: dict[int, str]) -> None:
        target.mkdir(exist_ok=True)
        for rank, text in stacks.items():
            replace_text(target / f"rank{rank}.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.sentence}\n\n{text}")
        if self.folder is not None:
            shown = self.cause or self.ranks[0]
            facts = {
                "rank": shown.progress.rank,
                "hostname": shown.host,
                "pid": shown.progress.pid,
                "phase": shown.progress.phase,
                "since_s": self.since_s,
                "message": self.sentence,
            }
            replace_text(self.folder / STALL_FILE, json.dumps(facts))


def _sentence(cause: Observation | None, ranks: Sequence[Observation], silent_s: float) -> str:
    progress = "; ".join(_progress(each) for each in ranks[:SHOWN_RANKS])
    last = f"Last progress: {progress}" + (f"; and {len(ranks) - SHOWN_RANKS} more." if ranks[SHOWN_RANKS:] else ".")
    if cause is None:
        hosts = ", ".join(sorted({each.host for each in ranks}))
        numbers = ", ".join(str(each.progress.rank) for each in ranks[:SHOWN_RANKS])
        why = "they have called different collective operations, or the network between them fails"
        if len(ranks) < ranks[0].progress.world_size:
            why = "another rank, its machine or the network to it is the cause, and gives no news"
        return f"all ranks on {hosts} ({numbers}) have waited for other ranks for {silent_s:.0f} s: {why}. {last}"
    who = f"rank {cause.progress.rank} on {cause.host} (process {cause.progress.pid})"
    why = f" and {STATES[cause.state]}" if cause.state in STATES else ""
    if cause.stopped:
        workers = ", ".join(f"{pid} ({process_name(pid)})" for pid in cause.stopped[:4])
        why = f"; its process {workers} {STATES['T']}"
    return f"{who} has made no progress for {silent_s:.0f} s in phase {cause.progress.phase}{why}. {last}"


def _progress(each: Observation) -> str:
    doing = "waiting for other ranks" if each.waits_for_ranks else f"in {each.progress.phase}"
    return f"rank {each.progress.rank} {each.silent_s:.0f} s ago {doing} at env step {each.progress.env_steps:,}"


def _advice(folder: Path | None) -> str:
    """Names the last checkpoint and the command that continues from it."""
    if folder is None:
        return "It has no checkpoint yet."
    try:
        recipe = json.loads((folder / "run.json").read_text(encoding="utf-8"))["recipe"]
        step = (folder / "checkpoints" / "last").read_text(encoding="utf-8").strip()
    except (OSError, ValueError, KeyError):
        return "It has no checkpoint yet."
    return f"Its last checkpoint is of env step {step}: powerband train {recipe} resume={folder}"


def _take_stacks(ranks: Sequence[Observation]) -> dict[int, str]:
    """Returns the Python stacks of each rank, or the state of its process where it cannot execute anything."""
    texts, sizes = {}, {}
    for each in ranks:
        progress, state = each.progress, process_state(each.progress.pid)
        if process_start_ticks(progress.pid) != progress.began or state in STATES:
            phrase = STATES.get(state, "has ended")
            texts[progress.rank] = f"Process {progress.pid} {phrase}, so it shows no stack.\n"
            continue
        sizes[progress.rank] = len(_read_stacks(each))
        with contextlib.suppress(OSError):
            os.kill(progress.pid, signal.SIGUSR2)
    deadline = time.monotonic() + STACK_S
    for each in ranks:
        if each.progress.rank not in sizes:
            continue
        start, text, previous = sizes[each.progress.rank], b"", None
        while not text or text != previous:  # at least once, however many ranks come before
            time.sleep(0.05 if (waits := time.monotonic() < deadline) else 0)
            previous, text = text, _read_stacks(each)[start:]
            if not waits:
                break
        texts[each.progress.rank] = text.decode(errors="replace") or f"Process {each.progress.pid} did not answer.\n"
    return texts


def _read_stacks(each: Observation) -> bytes:
    try:
        return Path(f"/proc/{each.progress.pid}/fd/{each.progress.stacks_fd}").read_bytes()
    except OSError:
        return b""


def _end_ranks(ranks: Sequence[tuple[int, int]]) -> None:
    """Ends processes (pid, start ticks) and what they have started. A stopped process must continue to end."""
    tree = {pid for rank, _ in ranks for pid in process_tree(rank)} - {os.getpid()}
    processes = [(pid, process_start_ticks(pid)) for pid in tree]
    for number in (END_SIGNAL, signal.SIGCONT):
        for pid, began in ranks:
            _signal(pid, began, number)
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline and any(process_start_ticks(pid) == began for pid, began in ranks):
        time.sleep(0.05)
    for process in processes:
        _signal(*process, signal.SIGKILL)


def _signal(pid: int, began: int | None, number: signal.Signals) -> None:
    if began is not None and process_start_ticks(pid) == began:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _with_limit(*writes: Callable[[], None]) -> None:
    """Calls each function in a thread, for at most WRITE_S seconds: the disk or the terminal may be what hangs."""

    def guarded(write: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            write()

    threads = [threading.Thread(target=guarded, args=(write,), daemon=True) for write in writes]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + WRITE_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _print(text: str) -> None:
    """Writes to standard error without Python's buffers, whose locks a blocked write would hold at the exit."""
    data = f"powerband: {text}\n".encode()
    while data:
        data = data[os.write(2, data) :]
