"""Trace: what a run's first steps after warm-up looked like, span by span, written once as ``trace.json``.

The file is in Chrome's trace format: https://ui.perfetto.dev opens it, and the report draws it. Once it is written a
clock is as fast as without one: what remains is one comparison a span.
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
"""Steps with updates that pass before the recording: they compile, allocate and fill caches."""
STEPS = 50
"""Steps that are recorded; more where fewer than UPDATES of them had updates."""
UPDATES = 2
SPANS = 2_000
"""Spans kept, the newest; a long step (a whole rollout) fills them alone."""


class TracedClock(PhaseClock):
    """A phase clock whose spans a trace can watch for a while."""

    trace: Trace | None = None

    def __call__(self, name: str) -> Any:
        """The span of account `name`, recorded while a trace is attached."""
        span = self.spans.get(name)
        if span is None:
            span = super().__call__(name)
        return span if self.trace is None else _Recorded(self.trace, name, span)


class Trace:
    """Recorder of spans; attaches itself to the clock after warm-up and detaches when it has written its file.

    Args:
        path: The file to write.
        clock: The clock of the loop.
    """

    def __init__(self, path: Path, clock: TracedClock) -> None:
        self.path, self.clock = path, clock
        self.depth = 0
        self._spans: deque[tuple] = deque(maxlen=SPANS)
        self._steps: deque[tuple[int, int, int, int]] = deque(maxlen=SPANS)
        self._warm = self._seen = self._updates = 0
        self._since_ns = self._step_ns = 0
        self._zero: Any = None

    def step(self, env_steps: int, grad_steps: int) -> bool:
        """Ends one iteration of the loop, with its (global) counts; True once the file is written."""
        if self.clock.trace is None:
            self._warm += grad_steps > 0
            if self._warm >= WARMUP_STEPS:
                self._begin()
            return False
        now = perf_counter_ns()
        self._steps.append((self._step_ns, now, env_steps, grad_steps))
        self._step_ns = now
        self._updates += grad_steps > 0
        enough = len(self._steps) >= STEPS and self._updates >= UPDATES
        if enough or (self._seen >= SPANS and self._updates > 0):
            self.write()
            return True
        return False

    def mark(self) -> Any:
        """An event on the current stream; None off CUDA and while a graph is captured, whose events are its own."""
        if not self.clock.cuda or torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, name: str, start_ns: int, marks: tuple[Any, Any]) -> None:
        """Records a span that ends now."""
        self._spans.append((name, self.depth, start_ns, perf_counter_ns(), *marks))
        self._seen += 1

    def write(self) -> None:
        """Detaches, and writes what was recorded; nothing where no step was, or no room is: it ends no run."""
        self.clock.trace = None
        if self._steps:
            text = json.dumps({"traceEvents": self._events(), "displayTimeUnit": "ms"}, separators=(",", ":"))
            with contextlib.suppress(OSError):
                self.path.write_text(text, encoding="utf-8")

    def _begin(self) -> None:
        if self.clock.cuda:  # one wait: host and device count from the same moment
            torch.cuda.synchronize()
            self._zero = self.mark()
        self._since_ns = self._step_ns = perf_counter_ns()
        self.clock.trace = self

    def _events(self) -> list[dict[str, Any]]:
        """Chrome's events: threads "loop" (accounts), "steps", and on CUDA "device"; times in microseconds."""
        if self.clock.cuda:
            torch.cuda.synchronize()
        events = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}
            for thread, name in enumerate(("steps", "loop", "device"))
        ]
        first_ns = self._spans[0][2] if self._seen > SPANS else self._since_ns
        for start, end, env_steps, grad_steps in self._steps:
            if start >= first_ns:
                counts = {"env_steps": env_steps, "grad_steps": grad_steps}
                events.append(self._event("step", 0, start, end) | {"args": counts})
        for name, depth, start, end, began, ended in self._spans:
            events.append(self._event(name, 1, start, end) | {"args": {"depth": depth}})
            if began is not None and ended is not None:
                at, until = (self._since_ns + int(self._zero.elapsed_time(mark) * 1e6) for mark in (began, ended))
                events.append(self._event(name, 2, at, until) | {"args": {"depth": depth}})
        return events

    def _event(self, name: str, thread: int, start_ns: int, end_ns: int) -> dict[str, Any]:
        ts, duration = (start_ns - self._since_ns) / 1e3, (end_ns - start_ns) / 1e3
        return {"name": name, "ph": "X", "pid": 0, "tid": thread, "ts": ts, "dur": duration}


class ReusableSpan:
    """The span of one account for whoever keeps it: looked up at each entry, so that a trace sees it too."""

    def __init__(self, clock: TracedClock, name: str) -> None:
        self.clock, self.name = clock, name

    def __enter__(self) -> Any:
        self._span = self.clock(self.name)
        return self._span.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._span.__exit__(*error)


class _Recorded:
    """A span of the clock, and beside it one of the trace."""

    __slots__ = ("trace", "name", "span", "start_ns", "mark")

    def __init__(self, trace: Trace, name: str, span: Any) -> None:
        self.trace, self.name, self.span = trace, name, span

    def __enter__(self) -> Any:
        self.mark = self.trace.mark()
        self.start_ns = perf_counter_ns()
        entered = self.span.__enter__()
        self.trace.depth += 1
        return entered

    def __exit__(self, *error: Any) -> Any:
        left = self.span.__exit__(*error)
        self.trace.depth -= 1
        self.trace.add(self.name, self.start_ns, (self.mark, self.trace.mark()))
        return left
