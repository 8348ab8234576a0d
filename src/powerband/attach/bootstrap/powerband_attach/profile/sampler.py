"""Sampler: a thread that looks at the stack of the training thread up to 50 times per second, and writes the record.

A look costs 0.1 to 0.4 ms: the walk over a deep stack takes a tenth of a millisecond, and the training thread loses the
core and its caches. After some seconds with spans, and while the thread hardly works, looks are therefore rarer, and
each sample counts for the longer time.

A sample of time inside of a span says which lines of the user's code it belongs to. A sample outside of all spans also
gets an account; `callers` says how. If that needs the next span, the training thread notes its own stack when the span
begins. The sampler alone would never see some spans: it gets the interpreter only when the training thread releases it,
as torch does in each operation, and many environments never.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time

from powerband_attach import process, record
from powerband_attach.profile import environments, loaders, output, rendering
from powerband_attach.profile.callers import UPDATE, Callers
from powerband_attach.profile.clock import OTHER, clock
from powerband_attach.profile.places import Place, place_of
from powerband_attach.profile.update_probe import update_probe
from powerband_attach.safely import safely

SAMPLE_S, EARLY_S, LATER_S = 0.02, 3.0, 0.1
"""Seconds between two samples, and between two later ones: `EARLY_S` after the first span there are some hundred
samples, and the spans measure most of the time."""
IDLE_SHARE, IDLE_S, WITHOUT_SPANS_S = 0.1, 0.1, 0.5
"""A thread that uses less than this share of a core is idle. Seconds between two samples of an idle thread, and of an
idle thread without any span, such as the process that starts the workers of `multiprocessing`."""
WRITE_S, LATE_WRITE_S, LATE_S = 0.5, 5.0, 900.0
"""Seconds between two lines of the record; a longer time after the process has run for `LATE_S`."""
NEW_CLASSES_S, LATE_CLASSES_S, LATE_CLASSES_AFTER_S = 0.1, 1.0, 10.0
"""Seconds between two searches for new environment classes, and between two later ones without a new module, after the
process has run for `LATE_CLASSES_AFTER_S`."""
QUESTIONS_S = 0.5
"""Seconds between two looks whether the launcher asks for something. Each look at a file releases the interpreter, and
the thread that trains must give it back."""
TRACE_S = 1.0
"""Longest recording of spans in seconds."""
MOST_PENDING = 250
"""Number of samples that may wait for the next event. The account of older ones needs none."""
LOOKS = 500
"""Largest number of looks whether a stopped thread has ended, 0.1 ms apart."""
INTERRUPTS = ("log", "save")
"""Accounts that do not belong to an update inside of its spans. Lightning runs a training step in a closure of the
optimiser, so its loggers run inside of the optimiser's span."""
MAX_PLACES = 2000
"""Number of different places to keep; the time of further ones stays without lines."""


class Sampler:
    """Samples the training thread, in a thread that `threading` does not list, until `stop`."""

    def __init__(self) -> None:
        self._wake = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()
        self._running = False
        self._thread = 0
        self._pending: list[tuple[str, Place, int]] = []
        self._previous = OTHER
        self._next: tuple[str, Place] | None = None
        self._callers = Callers()
        self._traced = False
        self._began = self._written = time.monotonic()
        self._spans_since = 0.0
        self._samples: dict[tuple, int] = {}

    def start(self) -> None:
        """Starts the thread."""
        self._wake.acquire()
        self._ended.acquire()
        _thread.start_new_thread(self._run, (self._wake, self._ended))
        self._running = True  # not before: `stop` would wait for ever for a thread that the system has refused

    def stop(self) -> None:
        """Stops the thread and waits for its end, for example before a fork."""
        if self._running:
            self._running = False
            ended = self._ended
            self._wake.release()
            ended.acquire()
            ended.release()
            # The thread still ends. Since Python 3.12, `os.fork` warns if the system lists another one.
            for _ in range(LOOKS):
                if not os.path.exists(f"/proc/self/task/{self._thread}"):
                    break
                time.sleep(1e-4)

    def restart(self) -> None:
        """Starts the thread again after `stop`."""
        if not self._running:
            self._wake, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
            self.start()

    def forget(self) -> None:
        """Discards all samples, in a forked process."""
        self.__init__()  # type: ignore[misc]

    @safely
    def write(self) -> None:
        """Writes the times so far, the samples since the last line, and once the recorded spans."""
        self._written = time.monotonic()
        samples, self._samples = self._samples, {}
        clock.fold()
        self._write_trace()
        record.write(
            "times",
            **clock.read(),
            cpu_s=time.process_time(),
            thread_s=_used_s(),
            queue_s=_queue_s(),
            loaders=loaders.read(),
            **_marks(),
            samples=[[*key, count] for key, count in samples.items()],
        )

    def _write_trace(self) -> None:
        recorded = clock.recorded
        if recorded and time.perf_counter_ns() - recorded[0][1] > TRACE_S * 1e9:  # a slow loop has few spans
            clock.recorded, clock.trace = None, recorded
        if clock.trace and not self._traced:
            self._traced = True
            record.write("trace", spans=list(clock.trace))

    def _run(self, wake: _thread.LockType, ended: _thread.LockType) -> None:
        """Samples until `wake` is released, then releases `ended`; `restart` may replace the locks meanwhile."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals belong to the threads of the script
        self._thread = _thread.get_native_id()
        searched = asked = looked = time.monotonic()
        modules = 0
        wait_s, used_s = SAMPLE_S, _used_s()
        while not wake.acquire(True, wait_s):
            now = time.monotonic()
            if now - searched >= self._classes_s(now, new_modules=modules != len(sys.modules)):
                searched, modules = now, len(sys.modules)
                safely(environments.wrap_new_classes)()
                rendering.name_renderer()
            if now - asked >= QUESTIONS_S:
                asked = now
                output.flush_if_asked()
                update_probe.look()
            self._sample(round(wait_s / SAMPLE_S))
            used_before, used_s = used_s, _used_s()
            wait_s = self._wait_s(now, idle=used_s - used_before < IDLE_SHARE * (now - looked))
            looked = now
            if now - self._written >= (WRITE_S if now - self._began < LATE_S else LATE_WRITE_S):
                self.write()
        ended.release()

    def _classes_s(self, now: float, new_modules: bool) -> float:
        """Returns the seconds between two searches for new environment classes."""
        late = now - self._began > LATE_CLASSES_AFTER_S and not new_modules
        return LATE_CLASSES_S if late else NEW_CLASSES_S

    def _wait_s(self, now: float, idle: bool) -> float:
        """Returns the seconds until the next sample, a multiple of `SAMPLE_S`."""
        if not clock.has_spans:
            return WITHOUT_SPANS_S if idle else SAMPLE_S
        if idle:
            return IDLE_S
        self._spans_since = self._spans_since or now
        return SAMPLE_S if now - self._spans_since < EARLY_S else LATER_S

    @safely
    def _sample(self, count: int) -> None:
        """Looks at the stack once, and counts the sample as `count` samples."""
        clock.fold()
        if self._next is not None:  # a span began after the pending samples
            after, next_place = self._next
            self._next = None
            self._callers.add(after, next_place)
            for top, place, times in self._pending:
                self._count(top, self._callers.account(place, self._previous, after), place, times)
            self._pending.clear()
        top = clock.top.name
        frame = sys._current_frames().get(clock.thread)
        if frame is None:
            return
        place = place_of(frame)
        del frame  # it keeps the variables of the script alive
        self._callers.add(top, place)
        account = "eval" if self._callers.evaluates(place) else _inside(top, place)
        if account:
            self._count(top, account, place, count)
            return
        if not self._pending:
            self._previous = clock.previous
            clock.at_next_span = self._note_next
        self._pending.append((top, place, count))
        if len(self._pending) > MOST_PENDING:
            self._count_without_event(*self._pending.pop(0))

    @safely
    def _note_next(self, account: str) -> None:
        """Notes the span after the pending samples. The training thread calls it, where the span begins."""
        self._next = account, place_of(sys._getframe())

    @safely
    def end_pending(self) -> None:
        """Counts the samples that wait for an event, at the end of the process."""
        for pending in self._pending:
            self._count_without_event(*pending)
        self._pending.clear()

    def _count_without_event(self, top: str, place: Place, times: int) -> None:
        self._count(top, self._callers.account(place, self._previous, OTHER), place, times)

    def _count(self, top: str, account: str, place: Place, times: int) -> None:
        key = (top, account, place.line, place.caller, place.library)
        if key not in self._samples and len(self._samples) >= MAX_PLACES:
            key = (top, account, "", "", "")
        self._samples[key] = self._samples.get(key, 0) + times


def _inside(top: str, place: Place) -> str:
    """Returns the account of a sample; "" if the next event must decide it.

    Args:
        top: Account of the innermost open span; ``other`` outside of all.
        place: What the stack is doing.
    """
    if top == "env":
        return "env_wait" if place.account == "wait" else "env"
    if top in UPDATE and place.account in INTERRUPTS:
        return place.account
    if top != OTHER:
        return top
    return place.account if place.account != "wait" else "idle"


def _marks() -> dict:
    """Returns the marks since the last line, if this run records progress."""
    if clock.marks is None:
        return {}
    marks, clock.marks = clock.marks, []
    return {"marks": marks}


def _used_s() -> float:
    """Returns the processor seconds of the clock's thread."""
    return time.clock_gettime(time.pthread_getcpuclockid(clock.thread))


def _queue_s() -> float:
    """Returns the seconds in which the main thread was ready to run and had no core; 0 if they are unknown."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


sampler = Sampler()


def begin() -> None:
    """Starts to sample this process and the processes that it forks."""
    process.before_fork.append(sampler.stop)
    process.after_fork_in_parent.append(sampler.restart)
    process.after_fork_in_child.append(_begin_again)
    process.at_end.append(_finish)
    process.after_failed_exec.append(sampler.restart)
    sampler.write()
    sampler.start()


def _begin_again() -> None:
    clock.restart()
    loaders.forget()
    output.forget()
    rendering.forget()
    sampler.forget()
    sampler.write()
    sampler.start()


def _finish() -> None:
    sampler.stop()
    sampler.end_pending()
    clock.fold()
    if clock.recorded:  # a short script, whose spans are fewer than the timeline holds
        clock.recorded, clock.trace = None, clock.recorded
    sampler.write()
