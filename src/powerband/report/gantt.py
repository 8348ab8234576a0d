"""The time line of some real steps: one row an account, as a strip of the recorded spans."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from powerband.report.chart import ticks
from powerband.report.ledger import colours

WIDTH, LEFT, ROW, TOP, BOTTOM = 1100, 118, 20, 20, 22
DETAIL_SPANS = 220
"""Spans that the detailed strip has room for."""
DETAIL_STEPS = 12
LETTER = 6.6
"""Width of a letter of a label, at most."""
LEAST_PX = 0.6
"""A span is drawn at least this wide: what is short is not invisible."""


@dataclass(frozen=True)
class Span:
    """One span; times in microseconds from the start of the recording. `owner` is the thread that it belongs to."""

    name: str
    start: float
    end: float
    owner: str
    depth: int = 0
    env_steps: int = 0
    grad_steps: int = 0


def spans_of(trace: dict[str, Any]) -> list[Span]:
    """Complete events of a Chrome trace, oldest first; each names its thread (steps, loop, device)."""
    events = trace.get("traceEvents", [])
    threads = {event["tid"]: event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    spans = []
    for event in events:
        if event.get("ph") == "X":
            args = event.get("args", {})
            counts = (int(args.get(name, 0)) for name in ("depth", "env_steps", "grad_steps"))
            end = event["ts"] + event["dur"]
            spans.append(Span(event["name"], event["ts"], end, threads.get(event["tid"], ""), *counts))
    return sorted(spans, key=lambda span: span.start)


def time_line(trace: dict[str, Any]) -> str:
    """Two figures: a few steps in detail, and all that were recorded; empty where none were."""
    spans = spans_of(trace)
    steps = [span for span in spans if span.owner == "steps"]
    if not steps:
        return ""
    few = _few(steps, [span for span in spans if span.owner != "steps"])
    parts = [_strip(_title("in detail", few), spans, few)]
    if len(few) < len(steps):
        parts.append(_strip(_title("all recorded steps", steps), spans, steps))
    return "".join(parts)


def ascii_line(trace: dict[str, Any], columns: int = 100) -> str:
    """The same few steps as text, as a plan would draw them: when the learner works, when the environment does."""
    spans = spans_of(trace)
    steps = [span for span in spans if span.owner == "steps"]
    if not steps:
        return ""
    few = _few(steps, [span for span in spans if span.owner != "steps"])
    start, end = few[0].start, few[-1].end
    marks = {"update": "=", "act": "-", "env": "|", "env_wait": "|"}
    rows = {"learner": [" "] * columns, "env": [" "] * columns}
    for span in spans:
        if span.owner == "loop" and span.name in marks and span.end > start and span.start < end:
            row = rows["env" if span.name.startswith("env") else "learner"]
            first = int((max(span.start, start) - start) / (end - start) * columns)
            last = int((min(span.end, end) - start) / (end - start) * columns)
            for column in range(first, min(last + 1, columns)):
                row[column] = marks[span.name]
    return "\n".join(f"{name + ':':<9}{''.join(row)}" for name, row in rows.items())


def _few(steps: list[Span], spans: list[Span]) -> list[Span]:
    """Neighbouring steps for the detailed strip: from an update to the next where there is room, at least one step."""
    first = next((index for index, step in enumerate(steps) if step.grad_steps), 0)
    chosen: list[Span] = []
    for step in steps[first:]:
        inside = sum(step.start <= span.start < step.end for span in spans)
        if chosen and (inside > DETAIL_SPANS - _count(chosen, spans) or len(chosen) >= DETAIL_STEPS):
            break
        chosen.append(step)
    return chosen


def _count(steps: list[Span], spans: list[Span]) -> int:
    return sum(steps[0].start <= span.start < steps[-1].end for span in spans)


def _title(what: str, steps: list[Span]) -> str:
    length = (steps[-1].end - steps[0].start) / 1e3
    env_steps, grad_steps = (sum(getattr(step, name) for step in steps) for name in ("env_steps", "grad_steps"))
    iterations = f"{len(steps)} iteration{'s' if len(steps) > 1 else ''}"
    return f"{what}: {iterations} of the loop, {env_steps} env steps and {grad_steps} updates in {_ms(length)}"


def _strip(title: str, spans: list[Span], steps: list[Span]) -> str:
    """One figure: a row for each account of the host, and for each account with work on the device."""
    start, end = steps[0].start, steps[-1].end
    inside = [span for span in spans if span.owner != "steps" and span.end > start and span.start < end]
    host = list(dict.fromkeys(span.name for span in inside if span.owner == "loop"))
    device = list(dict.fromkeys(span.name for span in inside if span.owner == "device"))
    rows = [("loop", name) for name in host] + [("device", name) for name in device]
    colour, place = colours([*host, *device]), {row: index for index, row in enumerate(rows)}
    height = TOP + ROW * len(rows) + BOTTOM
    scale = (WIDTH - LEFT - 8) / (end - start)
    parts = list(_steps(steps, start, scale, height))
    for row, index in place.items():
        own = [span for span in inside if (span.owner, span.name) == row]
        share = sum(min(span.end, end) - max(span.start, start) for span in own) / (end - start)
        label = row[1] if row[0] == "loop" else f"GPU {row[1]}"
        y = TOP + ROW * index
        parts.append(f"<text class=name x=0 y={y + 14}>{html.escape(label)}</text>")
        parts.append(f"<text x={LEFT - 8} y={y + 14} text-anchor=end>{share:.0%}</text>")
        for span in own:
            x = LEFT + (max(span.start, start) - start) * scale
            width = max((min(span.end, end) - max(span.start, start)) * scale, LEAST_PX)
            tip = f"<title>{html.escape(label)} {_ms((span.end - span.start) / 1e3)}</title>"
            box = f"x='{x:.2f}' width='{width:.2f}' y={y + 3} height={ROW - 6}"
            parts.append(f"<rect class=span {box} fill='var(--c{colour[row[1]]})'>{tip}</rect>")
    head = f"<figcaption><span>{html.escape(title)}</span></figcaption>"
    drawing = f"<svg viewBox='0 0 {WIDTH} {height}' style='min-width:760px' role=img>{''.join(parts)}</svg>"
    return f"<figure class=full>{head}<div class=scroll>{drawing}</div></figure>"


def _steps(steps: list[Span], start: float, scale: float, height: float) -> Iterator[str]:
    """Lines where iterations begin, their updates above, and a scale of time below."""
    free = 0.0  # from where on a label overlaps none before it
    for step in steps:
        x = LEFT + (step.start - start) * scale
        yield f"<line class=step x1='{x:.1f}' x2='{x:.1f}' y1={TOP - 4} y2='{height - BOTTOM}'/>"
        words = f"{step.grad_steps} update{'s' if step.grad_steps > 1 else ''}"
        if step.grad_steps and free <= x < WIDTH - LETTER * len(words):
            free = x + LETTER * (len(words) + 1)
            yield f"<text x='{x + 3:.1f}' y={TOP - 8}>{words}</text>"
    length = (steps[-1].end - start) / 1e3
    yield f"<line class=axis x1={LEFT} x2={WIDTH - 8} y1={height - BOTTOM} y2='{height - BOTTOM}'/>"
    for value in ticks(0, length, 8):
        x = LEFT + value * 1e3 * scale
        anchor = "end" if x > WIDTH - 24 else "middle"
        yield f"<text x='{x:.1f}' y={height - 6} text-anchor={anchor}>{_ms(value)}</text>"


def _ms(value: float) -> str:
    return f"{value / 1e3:.3g} s" if value >= 1e3 else f"{value:.3g} ms"
