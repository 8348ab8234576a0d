"""Trace: records the spans of the first steps after warm-up and writes them once to ``trace.json``.

The file has Chrome's trace format, which https://ui.perfetto.dev and the report display. After the file is written, the
trace costs one comparison per span.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

from powerband.core.telemetry.phase_clock import PhaseClock

WARMUP_STEPS = 3
"""Steps with updates before the recording starts; they compile, allocate and fill caches."""
STEPS, UPDATES = 50, 2
"""The recording ends after STEPS steps, of which at least UPDATES had updates."""
SPANS = 2_000
"""Number of newest spans to keep. One long step, such as a rollout, can exceed it."""


class TracedClock(PhaseClock):
    """A `PhaseClock` whose spans (timed sections) a `Trace` can record.

    Attributes:
        trace: The trace that records at present; None while nothing is recorded.
    """

    trace: Trace | None = None

    def __call__(self, name: str) -> Any:
        """Returns the context manager that adds its time to account (time category) `name`, and to a running trace."""
        span: Any = self.spans.get(name)
        if span is None:
            span = super().__call__(name)
        return span if self.trace is None else _RecordedSpan(self.trace, name, span)


class Trace:
    """Records the spans (timed sections) of the first steps after warm-up and writes them in Chrome's trace format.

    Args:
        path: Path of the file, ``trace.json``.
        clock: Clock of the loop.
    """

    def __init__(self, path: Path, clock: TracedClock) -> None:
        self.path, self.clock = path, clock
        self.depth = 0
        self._spans: deque[tuple] = deque(maxlen=SPANS)
        self._steps: deque[tuple[int, int, int, int]] = deque(maxlen=SPANS)
        self._warmup_steps = self._span_count = self._updates = 0
        self._since_ns = self._step_ns = 0
        self._zero: Any = None

    def step(self, env_steps: int, grad_steps: int) -> bool:
        """Ends an iteration of the loop, and writes the file if enough iterations have been recorded.

        Args:
            env_steps: Environment steps of this iteration, over all ranks.
            grad_steps: Updates of this iteration.

        Returns:
            True if the recording has ended, so that no further call is needed.
        """
        if self.clock.trace is None:
            self._warmup_steps += grad_steps > 0
            if self._warmup_steps >= WARMUP_STEPS:
                self._begin()
            return False
        now = perf_counter_ns()
        self._steps.append((self._step_ns, now, env_steps, grad_steps))
        self._step_ns = now
        self._updates += grad_steps > 0
        enough = len(self._steps) >= STEPS and self._updates >= UPDATES
        if enough or (self._span_count >= SPANS and self._updates > 0):
            self.write()
            return True
        return False

    def record_event(self) -> Any:
        """Records a CUDA event on the current stream. Returns None without CUDA, and during a capture of a graph."""
        if not self.clock.cuda or torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, name: str, start_ns: int, events: tuple[Any, Any]) -> None:
        """Adds a timed section that ends now.

        Args:
            name: Account (time category) of the section.
            start_ns: Start of the section, from `time.perf_counter_ns`.
            events: CUDA events at its start and end; None for an event that was not recorded.
        """
        self._spans.append((name, self.depth, start_ns, perf_counter_ns(), *events))
        self._span_count += 1

    def write(self) -> None:
        """Ends the recording and writes the file if it has steps. Errors of the disk are ignored."""
        self.clock.trace = None
        if self._steps:
            text = json.dumps({"traceEvents": self._events(), "displayTimeUnit": "ms"}, separators=(",", ":"))
            with contextlib.suppress(OSError):
                self.path.write_text(text, encoding="utf-8")

    def _begin(self) -> None:
        if self.clock.cuda:  # aligns the times of host and device
            torch.cuda.synchronize()
            self._zero = self.record_event()
        self._since_ns = self._step_ns = perf_counter_ns()
        self.clock.trace = self

    def _events(self) -> list[dict[str, Any]]:
        """Events in Chrome's format on the threads "steps", "loop" (accounts) and "device" (CUDA), in microseconds."""
        if self.clock.cuda:
            torch.cuda.synchronize()
        events = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}
            for thread, name in enumerate(("steps", "loop", "device"))
        ]
        first_ns = self._spans[0][2] if self._span_count > SPANS else self._since_ns
        for start, end, env_steps, grad_steps in self._steps:
            if start >= first_ns:
                counts = {"env_steps": env_steps, "grad_steps": grad_steps}
                events.append(self._event("step", 0, start, end) | {"args": counts})
        for name, depth, start, end, began, ended in self._spans:
            events.append(self._event(name, 1, start, end) | {"args": {"depth": depth}})
            if began is not None and ended is not None:
                at, until = (self._since_ns + int(self._zero.elapsed_time(event) * 1e6) for event in (began, ended))
                events.append(self._event(name, 2, at, until) | {"args": {"depth": depth}})
        return events

    def _event(self, name: str, thread: int, start_ns: int, end_ns: int) -> dict[str, Any]:
        ts, duration = (start_ns - self._since_ns) / 1e3, (end_ns - start_ns) / 1e3
        return {"name": name, "ph": "X", "pid": 0, "tid": thread, "ts": ts, "dur": duration}


class ReusableSpan:
    """Context manager for one account (time category) that callers may store and enter many times.

    Each entry requests the span from the clock again, so that traces include it.
    """

    def __init__(self, clock: TracedClock, name: str) -> None:
        self.clock, self.name = clock, name

    def __enter__(self) -> Any:
        self._span = self.clock(self.name)
        return self._span.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._span.__exit__(*error)


class _RecordedSpan:
    """A span of the clock that is also added to the trace."""

    __slots__ = ("trace", "name", "span", "start_ns", "start_event")

    def __init__(self, trace: Trace, name: str, span: Any) -> None:
        self.trace, self.name, self.span = trace, name, span

    def __enter__(self) -> Any:
        self.start_event = self.trace.record_event()
        self.start_ns = perf_counter_ns()
        entered = self.span.__enter__()
        self.trace.depth += 1
        return entered

    def __exit__(self, *error: Any) -> Any:
        suppressed = self.span.__exit__(*error)
        self.trace.depth -= 1
        self.trace.add(self.name, self.start_ns, (self.start_event, self.trace.record_event()))
        return suppressed
