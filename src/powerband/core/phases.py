"""PhaseClock: where the time of a loop goes. Every second of wall time lands in exactly one account.

    clock = PhaseClock()
    with clock("env"):
        ...
    print(clock.read())

A span inside a span is taken out of the outer one. What no span covers is the account ``other``. Not thread-safe: one
clock belongs to one loop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch


@dataclass(frozen=True)
class Phases:
    """Accounts of one interval.

    Attributes:
        wall_s: Seconds of the interval.
        host: Seconds of host time by account; they sum to `wall_s`.
        device: Seconds of device time by account, between events on the stream (CUDA only); kernels that a span
            launched may run after it, so a host span is short where its device span is long.
        cpu_s: Processor seconds of this process, all threads.
        counts: Spans by account.
    """

    wall_s: float
    host: dict[str, float]
    device: dict[str, float]
    cpu_s: float
    counts: dict[str, int]

    def share(self, name: str) -> float:
        """Share of the wall time in account `name`, 0 to 1."""
        return self.host.get(name, 0.0) / self.wall_s if self.wall_s > 0 else 0.0

    def __str__(self) -> str:
        rows = sorted(self.host, key=self.host.get, reverse=True)
        lines = [f"{'account':<12}{'seconds':>10}{'share':>8}{'spans':>9}"]
        lines += [f"{n:<12}{self.host[n]:>10.3f}{self.share(n):>8.1%}{self.counts.get(n, 0):>9}" for n in rows]
        return "\n".join([*lines, f"{'wall':<12}{self.wall_s:>10.3f}{'':>8}  cpu {self.cpu_s:.3f} s"])


class Span:
    """One account; entered with ``with``. Spans of one name are one object, so entering costs no allocation."""

    __slots__ = ("clock", "ns", "count", "entered", "events")

    def __init__(self, clock: PhaseClock) -> None:
        self.clock, self.ns, self.count, self.entered = clock, 0, 0, []
        self.events: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        now = perf_counter_ns()
        stack = self.clock.stack
        if stack:
            outer = stack[-1]
            outer.ns += now - self.clock.since
        stack.append(self)
        self.clock.since = now
        self.count += 1

    def __exit__(self, *error: object) -> None:
        now = perf_counter_ns()
        clock = self.clock
        self.ns += now - clock.since
        clock.since = now
        clock.stack.pop()


class CudaSpan(Span):
    """A span that also brackets its work on the current stream with a pair of events."""

    __slots__ = ()

    def __enter__(self) -> None:
        start = self.clock.event()
        start.record()
        self.entered.append(start)
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__()
        stop = self.clock.event()
        stop.record()
        self.events.append((self.entered.pop(), stop))


class NoSpan:
    """What a disabled clock hands out."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


class PhaseClock:
    """Host time (and on CUDA device time) by account.

    Args:
        device: Where the work runs; on CUDA spans record events, which are read once in `read`.
        enabled: False hands out spans that do nothing.
    """

    def __init__(self, device: torch.device | str = "cpu", enabled: bool = True) -> None:
        self.cuda = torch.device(device).type == "cuda"
        self.enabled = enabled
        self.spans: dict[str, Span] = {}
        self.stack: list[Span] = []
        self.since = 0
        self._nothing = NoSpan()
        self._free_events: list[torch.cuda.Event] = []
        self._restart()

    def __call__(self, name: str) -> Span | NoSpan:
        """The span of account `name`."""
        span = self.spans.get(name)
        if span is not None:
            return span
        if not self.enabled:
            return self._nothing
        span = self.spans[name] = CudaSpan(self) if self.cuda else Span(self)
        return span

    def event(self) -> torch.cuda.Event:
        """A CUDA event from the pool."""
        return self._free_events.pop() if self._free_events else torch.cuda.Event(enable_timing=True)

    def read(self, reset: bool = True) -> Phases:
        """Accounts since the last reset. On CUDA this waits for the last event: call it once a log interval."""
        assert not self.stack, f"read inside a span ({len(self.stack)} open)"
        wall_s = (perf_counter_ns() - self._start_ns) * 1e-9
        host = {name: span.ns * 1e-9 for name, span in self.spans.items()}
        host["other"] = max(0.0, wall_s - sum(host.values()))
        counts = {name: span.count for name, span in self.spans.items()}
        device: dict[str, float] = {}
        for name, span in self.spans.items():
            if span.events:
                span.events[-1][1].synchronize()
                device[name] = sum(start.elapsed_time(stop) for start, stop in span.events) * 1e-3
        phases = Phases(wall_s, host, device, time.process_time() - self._start_cpu_s, counts)
        if reset:
            self._restart()
        return phases

    def _restart(self) -> None:
        for span in self.spans.values():
            span.ns = span.count = 0
            self._free_events += [event for pair in span.events for event in pair]
            span.events.clear()
        self._start_ns, self._start_cpu_s = perf_counter_ns(), time.process_time()
