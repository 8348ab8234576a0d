"""Trace: the content of the file, and a clock without overhead after the recording."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import runs
from powerband.core.telemetry.trace import STEPS, WARMUP_STEPS, ReusableSpan, Trace, TracedClock
from powerband.report.sections.timeline import spans_of, timeline_charts, timeline_text


def record(path: Path, steps: int, updates_every: int = 1) -> tuple[Trace, TracedClock, bool]:
    """Runs a loop with a span per iteration, and an inner span if an update is due."""
    clock = TracedClock()
    trace = Trace(path, clock)
    done = False
    for index in range(steps):
        due = int((index + 1) % updates_every == 0)
        with clock("env"):
            time.sleep(0.0005)
            if due:
                with clock("inner"):
                    pass
        done = done or trace.step(4, due)
    return trace, clock, done


def test_fifty_steps_after_warm_up_are_written_once_and_the_recording_ends(tmp_path: Path) -> None:
    _, clock, done = record(tmp_path / "trace.json", WARMUP_STEPS + STEPS)
    assert done and clock.trace is None and clock("env") is clock("env")
    spans = spans_of(json.loads((tmp_path / "trace.json").read_text()))
    steps = [span for span in spans if span.owner == "steps"]
    assert len(steps) == STEPS and sum(step.env_steps for step in steps) == 4 * STEPS
    outer, inner = ([span for span in spans if span.name == name] for name in ("env", "inner"))
    assert len(outer) == len(inner) == STEPS and {span.depth for span in inner} == {1}
    for step, around, within in zip(steps, outer, inner, strict=True):
        assert step.start <= around.start <= within.start <= within.end <= around.end <= step.end
        assert around.end - around.start >= 500


def test_the_recording_continues_until_two_updates(tmp_path: Path) -> None:
    _, _, done = record(tmp_path / "a.json", 70 * (WARMUP_STEPS + 1), updates_every=70)
    assert not done
    _, _, done = record(tmp_path / "b.json", 70 * (WARMUP_STEPS + 2), updates_every=70)
    assert done and len(spans_of(json.loads((tmp_path / "b.json").read_text()))) > 2 * 140


def test_a_recording_does_not_change_the_accounts(tmp_path: Path) -> None:
    clock = TracedClock()
    trace = Trace(tmp_path / "trace.json", clock)
    for _ in range(WARMUP_STEPS + 5):
        with clock("env"), clock("inner"):
            time.sleep(0.001)
        trace.step(1, 1)
    phases = clock.read()
    assert phases.counts == {"env": WARMUP_STEPS + 5, "inner": WARMUP_STEPS + 5}
    assert sum(phases.host.values()) == pytest.approx(phases.wall_s, rel=1e-6)


def test_a_reusable_span_is_recorded_at_each_entry(tmp_path: Path) -> None:
    clock = TracedClock()
    trace, span = Trace(tmp_path / "trace.json", clock), ReusableSpan(clock, "collectives")
    for _ in range(WARMUP_STEPS + STEPS):
        with clock("update"), span:
            pass
        trace.step(1, 1)
    spans = spans_of(json.loads((tmp_path / "trace.json").read_text()))
    assert sum(span.name == "collectives" and span.depth == 1 for span in spans) == STEPS
    assert clock.read().counts["collectives"] == WARMUP_STEPS + STEPS


def test_a_run_writes_a_trace_that_the_report_draws(tmp_path: Path) -> None:
    run = runs.train("sac", tmp_path / "run", "env_steps=240", "num_workers=0", "update_interval=4")
    trace = json.loads((run / "trace.json").read_text())
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
    assert all(event["dur"] >= 0 for event in trace["traceEvents"] if event["ph"] == "X")
    strips = timeline_charts(trace)
    assert strips.count("<figure") == 2 and ">update<" in strips and "4 updates" in strips
    drawn = timeline_text(trace)
    assert drawn.startswith("learner: ") and "=" in drawn and "|" in drawn.splitlines()[1]


def test_a_run_that_ends_during_warm_up_writes_no_trace(tmp_path: Path) -> None:
    run = runs.train("sac", tmp_path / "run", "env_steps=20", "num_workers=0")
    assert not (run / "trace.json").exists()
    assert timeline_charts({}) == "" == timeline_text({})
