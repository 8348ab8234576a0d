"""Timeline of recorded training steps: draws one row of time spans per account (category of time)."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from powerband.core.json_shape import fits
from powerband.report.chart import ticks
from powerband.report.sections.ledger import account_colours

WIDTH, LEFT, ROW, TOP, BOTTOM = 1100, 118, 20, 20, 22
DETAIL_SPANS = 220
"""Largest number of spans in the detailed figure."""
DETAIL_STEPS = 12
LETTER_WIDTH = 6.6
"""Largest width of a letter of a label, in pixels."""
MIN_SPAN_WIDTH = 0.6
"""Smallest width of a span in pixels, so that short spans stay visible."""


COUNTS = ("depth", "env_steps", "grad_steps")
THREAD = {"name": str, "tid": int, "args": {"name": str}}
EVENT = {"name": str, "ph": str, "ts": float, "dur": float, "tid": int}
"""Entries of the events of a Chrome trace that name a thread, and that are spans."""


@dataclass(frozen=True)
class Span:
    """One recorded span, an interval in which the training loop did one kind of work.

    Attributes:
        name: Account (category of time) of the span.
        start, end: Microseconds since the start of the recording.
        owner: ``loop`` for work of the training loop, ``device`` for its work on the GPU, ``steps`` for an iteration.
        depth: Number of enclosing spans.
        env_steps: Environment steps of an iteration; 0 for other spans.
        grad_steps: Updates of an iteration; 0 for other spans.
    """

    name: str
    start: float
    end: float
    owner: str
    depth: int = 0
    env_steps: int = 0
    grad_steps: int = 0


def spans_of(trace: dict[str, Any]) -> list[Span]:
    """Returns the spans (complete events) of a Chrome trace, the oldest first.

    Args:
        trace: Contents of ``trace.json`` in a run folder.
    """
    listed = trace.get("traceEvents")
    events = listed if isinstance(listed, list) else []
    threads = {event["tid"]: event["args"]["name"] for event in events if fits(event, THREAD)}
    spans = []
    for event in events:
        if fits(event, EVENT) and event["ph"] == "X" and event["dur"] >= 0:
            args = event.get("args")
            counts = (int(args[name]) if fits(args, {name: float}) else 0 for name in COUNTS)
            end = event["ts"] + event["dur"]
            spans.append(Span(event["name"], event["ts"], end, threads.get(event["tid"], ""), *counts))
    return sorted(spans, key=lambda span: span.start)


def timeline_charts(trace: dict[str, Any]) -> str:
    """Draws some recorded training steps in detail, then all recorded steps.

    Args:
        trace: A Chrome trace, the contents of ``trace.json`` in a run folder.

    Returns:
        The charts as HTML; empty if the trace has no steps.
    """
    spans = spans_of(trace)
    steps = [span for span in spans if span.owner == "steps"]
    if not steps:
        return ""
    detail = _detail_steps(steps, [span for span in spans if span.owner != "steps"])
    parts = [_strip(_title("in detail", detail), spans, detail)]
    if len(detail) < len(steps):
        parts.append(_strip(_title("all recorded steps", steps), spans, steps))
    return "".join(parts)


def timeline_text(trace: dict[str, Any], columns: int = 100) -> str:
    """Draws some recorded training steps as text: one row for the learner and one for the environment.

    The signs are ``=`` for updates, ``-`` for choosing actions and ``|`` for the environment.

    Args:
        trace: A Chrome trace, the contents of ``trace.json`` in a run folder.
        columns: Characters per row.

    Returns:
        The two rows; empty if the trace has no steps.
    """
    spans = spans_of(trace)
    steps = [span for span in spans if span.owner == "steps"]
    if not steps:
        return ""
    detail = _detail_steps(steps, [span for span in spans if span.owner != "steps"])
    start, end = detail[0].start, detail[-1].end
    length = end - start if end > start else 1.0
    marks = {"update": "=", "act": "-", "env": "|", "env_wait": "|"}
    rows = {"learner": [" "] * columns, "env": [" "] * columns}
    for span in spans:
        if span.owner == "loop" and span.name in marks and span.end > start and span.start < end:
            row = rows["env" if span.name.startswith("env") else "learner"]
            first = int((max(span.start, start) - start) / length * columns)
            last = int((min(span.end, end) - start) / length * columns)
            for column in range(first, min(last + 1, columns)):
                row[column] = marks[span.name]
    return "\n".join(f"{name + ':':<9}{''.join(row)}" for name, row in rows.items())


def _detail_steps(steps: list[Span], spans: list[Span]) -> list[Span]:
    """Selects neighbouring steps for the detailed figure, from the first with an update; at least one step."""
    first = next((index for index, step in enumerate(steps) if step.grad_steps), 0)
    selected: list[Span] = []
    for step in steps[first:]:
        inside = sum(step.start <= span.start < step.end for span in spans)
        if selected and (inside > DETAIL_SPANS - _count(selected, spans) or len(selected) >= DETAIL_STEPS):
            break
        selected.append(step)
    return selected


def _count(steps: list[Span], spans: list[Span]) -> int:
    return sum(steps[0].start <= span.start < steps[-1].end for span in spans)


def _title(label: str, steps: list[Span]) -> str:
    length = (steps[-1].end - steps[0].start) / 1e3
    env_steps, grad_steps = (sum(getattr(step, name) for step in steps) for name in ("env_steps", "grad_steps"))
    iterations = f"{len(steps)} iteration{'s' if len(steps) > 1 else ''}"
    return f"{label}: {iterations} of the loop, {env_steps} env steps and {grad_steps} updates in {_ms(length)}"


def _strip(title: str, spans: list[Span], steps: list[Span]) -> str:
    """Draws one figure of the spans in `steps`, with a row for each account of the host and of the device."""
    start, end = steps[0].start, steps[-1].end
    length = end - start if end > start else 1.0
    inside = [span for span in spans if span.owner != "steps" and span.end > start and span.start < end]
    host = list(dict.fromkeys(span.name for span in inside if span.owner == "loop"))
    device = list(dict.fromkeys(span.name for span in inside if span.owner == "device"))
    rows = [("loop", name) for name in host] + [("device", name) for name in device]
    colour = account_colours([*host, *device])
    height = TOP + ROW * len(rows) + BOTTOM
    scale = (WIDTH - LEFT - 8) / length
    parts = list(_steps(steps, start, scale, height))
    for index, row in enumerate(rows):
        row_spans = [span for span in inside if (span.owner, span.name) == row]
        share = sum(min(span.end, end) - max(span.start, start) for span in row_spans) / length
        label = row[1] if row[0] == "loop" else f"GPU {row[1]}"
        y = TOP + ROW * index
        parts.append(f"<text class=name x=0 y={y + 14}>{html.escape(label)}</text>")
        parts.append(f"<text x={LEFT - 8} y={y + 14} text-anchor=end>{share:.0%}</text>")
        for span in row_spans:
            x = LEFT + (max(span.start, start) - start) * scale
            width = max((min(span.end, end) - max(span.start, start)) * scale, MIN_SPAN_WIDTH)
            tooltip = f"<title>{html.escape(label)} {_ms((span.end - span.start) / 1e3)}</title>"
            box = f"x='{x:.2f}' width='{width:.2f}' y={y + 3} height={ROW - 6}"
            parts.append(f"<rect class=span {box} fill='var(--c{colour[row[1]]})'>{tooltip}</rect>")
    head = f"<figcaption><span>{html.escape(title)}</span></figcaption>"
    drawing = f"<svg viewBox='0 0 {WIDTH} {height}' style='min-width:760px' role=img>{''.join(parts)}</svg>"
    return f"<figure class=full>{head}<div class=scroll>{drawing}</div></figure>"


def _steps(steps: list[Span], start: float, scale: float, height: float) -> Iterator[str]:
    """Draws a line at the start of each iteration, its number of updates above the line, and the time axis below."""
    free = 0.0  # labels from here on do not overlap the previous one
    for step in steps:
        x = LEFT + (step.start - start) * scale
        yield f"<line class=step x1='{x:.1f}' x2='{x:.1f}' y1={TOP - 4} y2='{height - BOTTOM}'/>"
        label = f"{step.grad_steps} update{'s' if step.grad_steps > 1 else ''}"
        if step.grad_steps and free <= x < WIDTH - LETTER_WIDTH * len(label):
            free = x + LETTER_WIDTH * (len(label) + 1)
            yield f"<text x='{x + 3:.1f}' y={TOP - 8}>{label}</text>"
    length = (steps[-1].end - start) / 1e3
    yield f"<line class=axis x1={LEFT} x2={WIDTH - 8} y1={height - BOTTOM} y2='{height - BOTTOM}'/>"
    for value in ticks(0, length, 8):
        x = LEFT + value * 1e3 * scale
        anchor = "end" if x > WIDTH - 24 else "middle"
        yield f"<text x='{x:.1f}' y={height - 6} text-anchor={anchor}>{_ms(value)}</text>"


def _ms(value: float) -> str:
    return f"{value / 1e3:.3g} s" if value >= 1e3 else f"{value:.3g} ms"
