"""PhaseClock: measures how long a loop spends in each account, which is a named category of time.

Every second of wall time belongs to exactly one account.

    clock = PhaseClock()
    with clock("env"):
        ...
    print(clock.read())

The time of an inner span is not part of the outer span. Time outside of all spans belongs to the account ``other``. A
clock belongs to one loop and is not thread-safe.

Each account has a histogram of its span durations with two bins per doubling of the duration. Quantiles are
accurate to 20 percent; the longest span is exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter_ns
from typing import Any

import torch

from powerband.core.stalls.progress import Progress

BINS = 128
"""Bins of a histogram. Bin k counts spans of 2**((k - 1) / 2) to 2**(k / 2) nanoseconds; the last is never reached."""


@dataclass(frozen=True)
class PhaseTimes:
    """Times of all accounts (time categories such as env or update) in one interval.

    Attributes:
        wall_s: Seconds of the interval.
        host: Seconds of host time by account; their sum is `wall_s`.
        device: Seconds of device time by account, between events on the stream (CUDA only). Kernels may run after the
            host span that launched them, so a short host span can have a long device span.
        cpu_s: Processor seconds of this process, all threads.
        counts: Number of spans by account; a span is one entry into ``with clock(name)``.
        thread_s: Processor seconds of the thread that reads the clock. For the rest of `wall_s` this thread slept or
            waited.
        worst_s: Longest span by account, seconds.
        bins: Histogram of span durations by account; two bins per doubling of the duration.
    """

    wall_s: float
    host: dict[str, float]
    device: dict[str, float]
    cpu_s: float
    counts: dict[str, int]
    thread_s: float = 0.0
    worst_s: dict[str, float] = field(default_factory=dict)
    bins: dict[str, list[int]] = field(default_factory=dict)

    def share(self, name: str) -> float:
        """Share of the wall time in account (time category) `name`, 0 to 1."""
        return self.host.get(name, 0.0) / self.wall_s if self.wall_s > 0 else 0.0

    def mean_s(self, name: str) -> float:
        """Mean seconds of a span (one entry into ``with clock(name)``) of account `name`; 0 without spans."""
        return self.host.get(name, 0.0) / max(self.counts.get(name, 0), 1)

    def quantile_s(self, name: str, q: float) -> float:
        """Quantile `q` (0 to 1) of the span durations of account `name`, in seconds; 0 without spans.

        A span is one entry into ``with clock(name)``. The result is the middle of a histogram bin, accurate to 20
        percent.
        """
        counted, bins = 0, self.bins.get(name, ())
        for index, count in enumerate(bins):
            counted += count
            if counted >= q * sum(bins) and counted:
                return min(2.0 ** ((index - 0.5) / 2) * 1e-9, self.worst_s[name])
        return 0.0

    def __add__(self, other: PhaseTimes) -> PhaseTimes:
        """Combines two intervals into one."""

        def summed(a: dict, b: dict, add: Any = lambda x, y: x + y) -> dict:
            return {key: add(a[key], b[key]) if key in a and key in b else {**a, **b}[key] for key in {**a, **b}}

        return PhaseTimes(
            self.wall_s + other.wall_s,
            summed(self.host, other.host),
            summed(self.device, other.device),
            self.cpu_s + other.cpu_s,
            summed(self.counts, other.counts),
            self.thread_s + other.thread_s,
            summed(self.worst_s, other.worst_s, max),
            summed(self.bins, other.bins, lambda x, y: [i + j for i, j in zip(x, y, strict=True)]),
        )

    def __str__(self) -> str:
        rows = sorted(self.host, key=self.host.__getitem__, reverse=True)
        lines = [f"{'account':<12}{'seconds':>10}{'share':>8}{'spans':>9}"]
        lines += [f"{n:<12}{self.host[n]:>10.3f}{self.share(n):>8.1%}{self.counts.get(n, 0):>9}" for n in rows]
        return "\n".join([*lines, f"{'wall':<12}{self.wall_s:>10.3f}{'':>8}  cpu {self.cpu_s:.3f} s"])


class Span:
    """Context manager that adds its time to one account (a named category of time such as env).

    Each account reuses one object, so that entering it allocates nothing.
    """

    __slots__ = ("clock", "name", "phase", "ns", "before", "worst", "bins", "entered", "events", "inner")

    def __init__(self, clock: PhaseClock, name: str, phase: int) -> None:
        self.clock, self.name, self.phase = clock, name, phase
        self.entered: list[Any] = []
        self.events: list[tuple[Any, Any]] = []
        self.inner: list[tuple[Any, Any]] = []
        self.clear()

    def clear(self) -> None:
        self.ns = self.before = self.worst = 0
        self.bins = [0] * BINS

    def __enter__(self) -> None:
        now = perf_counter_ns()
        clock = self.clock
        stack = clock.stack
        if stack:
            stack[-1].ns += now - clock.since
        stack.append(self)
        self.before = self.ns
        clock.since = now
        clock.beat[0] = now + self.phase

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        now = perf_counter_ns()
        clock = self.clock
        ns = self.ns = self.ns + now - clock.since
        clock.since = now
        stack = clock.stack
        stack.pop()
        clock.beat[0] = now + stack[-1].phase if stack else now
        ns -= self.before
        self.bins[(ns * ns).bit_length()] += 1
        if ns > self.worst:
            self.worst = ns


class CudaSpan(Span):
    """A span (timed section) that also measures device time with two events on the current CUDA stream.

    It records no events during the capture of a CUDA graph, because they would become part of the graph.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        start = None
        if not torch.cuda.is_current_stream_capturing():
            start = self.clock.event()
            start.record()
        self.entered.append(start)
        super().__enter__()
        if self.clock.switches is not None:
            self.clock.switches.append((time.time_ns(), self.name))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if self.clock.switches is not None:
            outer = self.clock.stack[-1].name if self.clock.stack else "other"
            self.clock.switches.append((time.time_ns(), outer))
        start = self.entered.pop()
        if start is not None and not torch.cuda.is_current_stream_capturing():
            stop = self.clock.event()
            stop.record()
            self.events.append((start, stop))
            if self.clock.stack:
                self.clock.stack[-1].inner.append((start, stop))


class NullSpan:
    """Context manager that a disabled `PhaseClock` returns; it measures nothing."""

    def __enter__(self) -> None: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...


class PhaseClock:
    """Measures how long a loop spends in each account (a named category of time), and the device time on CUDA.

    Attributes:
        total: Sum of the intervals that `read` has ended since the last `restart`; None before the first.
        switches: On CUDA, instants at which the loop enters an account, while they are recorded; otherwise None.

    Args:
        device: Device of the work. On CUDA, spans record events, which `read` evaluates.
        enabled: False measures nothing.
        progress: Shows the current span to a watching process; None shows it to nobody.
    """

    def __init__(
        self, device: torch.device | str = "cpu", enabled: bool = True, progress: Progress | None = None
    ) -> None:
        self._progress = Progress() if progress is None else progress
        self.beat = self._progress.beat
        self.cuda = torch.device(device).type == "cuda"
        self.enabled = enabled
        self.spans: dict[str, Span] = {}
        self.stack: list[Span] = []
        self.since = 0
        self.total: PhaseTimes | None = None
        self.switches: list[tuple[int, str]] | None = None
        self._null_span = NullSpan()
        self._free_events: list[torch.cuda.Event] = []
        self._restart()

    def __call__(self, name: str) -> Span | NullSpan:
        """Returns the context manager that adds its time to account (time category) `name`."""
        span = self.spans.get(name)
        if span is not None:
            return span
        if not self.enabled:
            return self._null_span
        phase = self._progress.phase(name)
        span = self.spans[name] = CudaSpan(self, name, phase) if self.cuda else Span(self, name, phase)
        return span

    def wrap(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `fn` with the time of its calls added to account `name`, for loops that you cannot edit."""

        @wraps(fn)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self(name):
                return fn(*args, **kwargs)

        return timed

    def record_switches(self) -> list[tuple[int, str]]:
        """Starts to record, on CUDA, when the loop enters an account. Call it outside of all spans.

        Returns:
            The list that grows until `stop_switches`: Unix time in nanoseconds and the account that begins.
        """
        self.switches = [(time.time_ns(), "other")]
        return self.switches

    def stop_switches(self) -> None:
        """Ends the recording; the last entry of the list is its end."""
        assert self.switches is not None
        self.switches.append((time.time_ns(), "other"))
        self.switches = None

    def event(self) -> torch.cuda.Event:
        """A CUDA event from the pool of reused events."""
        return self._free_events.pop() if self._free_events else torch.cuda.Event(enable_timing=True)

    def read(self, reset: bool = True) -> PhaseTimes:
        """Returns the times of all accounts (time categories) since the last reset. Call it outside of all spans.

        On CUDA this waits for the last event; call it once per log interval.

        Args:
            reset: True starts the next interval, and adds this one to `total`.
        """
        assert not self.stack, f"read inside a span ({len(self.stack)} open)"
        wall_s = (perf_counter_ns() - self._start_ns) * 1e-9
        spans = self.spans.items()
        host = {name: span.ns * 1e-9 for name, span in spans}
        host["other"] = max(0.0, wall_s - sum(host.values()) + host.get("other", 0.0))
        bins = {name: list(span.bins) for name, span in spans}
        device: dict[str, float] = {}
        for name, span in spans:
            if span.events:
                span.events[-1][1].synchronize()
                outer, inner = (sum(a.elapsed_time(b) for a, b in pairs) for pairs in (span.events, span.inner))
                device[name] = (outer - inner) * 1e-3
        phases = PhaseTimes(
            wall_s,
            host,
            device,
            time.process_time() - self._start_cpu_s,
            {name: sum(counts) for name, counts in bins.items()},
            time.thread_time() - self._start_thread_s,
            {name: span.worst * 1e-9 for name, span in spans},
            bins,
        )
        if reset:
            self.total = phases if self.total is None else self.total + phases
            self._restart()
        return phases

    def read_total(self) -> PhaseTimes:
        """Times of all accounts since the last `restart`, including the current interval."""
        current = self.read(reset=False)
        return current if self.total is None else self.total + current

    def exclude(self, wall_s: float, cpu_s: float, thread_s: float) -> None:
        """Leaves out time that has just passed and is no work of the loop, such as compilation, also within spans.

        Args:
            wall_s: Seconds of wall time.
            cpu_s, thread_s: Processor seconds of the process and of this thread in this time.
        """
        nanoseconds = round(wall_s * 1e9)
        self._start_ns += nanoseconds
        self.since += nanoseconds
        self._start_cpu_s += cpu_s
        self._start_thread_s += thread_s

    def restart(self) -> None:
        """Discards all measurements and starts the first interval."""
        assert not self.stack, f"restart inside a span ({len(self.stack)} open)"
        self.total = None
        self._restart()

    def _restart(self) -> None:
        for span in self.spans.values():
            self._free_events += [event for pair in span.events for event in pair]
            span.events.clear()
            span.inner.clear()
            span.clear()
        self._start_ns, self._start_cpu_s = perf_counter_ns(), time.process_time()
        self._start_thread_s = time.thread_time()
