"""The window of a script: without records, with updates that come late, of an old process, and switched off."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

import powerband
from powerband.attach.findings import script_profile
from powerband.attach.processes import script_run
from powerband.attach.processes.records import Record
from powerband.attach.processes.script_run import ScriptOptions, ScriptRun, watched
from powerband.cli.main import main

S = 10**9


def times(now_s: float, updates: int, **others: Any) -> dict[str, Any]:
    common = {"kind": "times", "ns": {"other": int(now_s * S)}, "samples": [], "bins": {}, "counts": {}, "envs": {}}
    common |= dict.fromkeys(("cpu_s", "thread_s", "queue_s", "env_steps", "optimizer_steps", "num_envs"), 0)
    return {**common, "now_ns": int(now_s * S), "updates": updates, **others}


class Script:
    """A script that ends when the time comes, or when it is ended; the time is invented."""

    instrumented, status = True, 0

    def __init__(self, clock: list[float], record: Record, end_s: float) -> None:
        self.clock, self.record, self.end_s, self.ended_at = clock, record, end_s, 0.0

    def wait(self, until: Any) -> bool:
        while self.clock[0] < self.end_s:
            if until():
                return False
            self.clock[0] += 0.25
        return True

    def end(self) -> None:
        self.ended_at = self.clock[0]

    flush_output = probe = silent = end

    def records(self) -> list[Record]:
        lines = [line for line in self.record.lines if line["now_ns"] <= self.clock[0] * S]
        return [Record(1, 0, self.record.began_ns, self.record.start, lines)]


def run(
    monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]], start_s: float, end_s: float, **options: Any
) -> Any:
    clock = [start_s]
    monkeypatch.setattr(script_run.time, "perf_counter_ns", lambda: int(clock[0] * S))
    script: Any = Script(clock, Record(1, 0, 0, {"rank": "", "argv": []}, lines), end_s)
    found = watched(script, ScriptOptions(**options))
    monkeypatch.undo()
    return found, script


def test_updates_that_begin_after_the_wait_begin_the_window_of_a_script_that_keeps_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [times(second, 10 * max(0, second - 150)) for second in range(200)]
    found, _ = run(monkeypatch, lines, 0.0, 200.0, keep_running=True)
    assert (found.start_ns, found.end_ns, found.notes) == (151 * S, 200 * S, [])


def test_the_window_of_an_old_process_has_two_of_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [times(second, 10) for second in range(1000, 1100, 5)]
    found, script = run(monkeypatch, lines, 1001.0, 1100.0, seconds=2.0)
    assert (found.end_ns - found.start_ns) / S == pytest.approx(11 * 1.02) and script.ended_at < 1013
    assert "the window has 11 s" in found.notes[0]


def test_a_script_with_two_updates_is_not_called_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = run(monkeypatch, [times(1, 1), times(2, 2)], 0.0, 3.0)
    assert found.notes[0] == "the script ended with fewer than three optimiser steps"


def test_a_window_without_two_lines_is_noted() -> None:
    lines = [times(1, 5), times(2, 10), times(3, 15)]
    measured = ScriptRun([Record(1, 0, 0, {"rank": "", "argv": []}, lines)], [], 0, 3 * S, 4 * S, 3.0)
    assert script_profile(["python"], measured) is not None
    assert "covers all time since the start" in measured.notes[0]


def test_a_script_that_never_reports_is_ended_and_named(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert main(["profile", "wait=1", "--", sys.executable, "-I", "-c", "import time; time.sleep(60)"]) == 1
    assert "never reported" in capfd.readouterr().err and time.monotonic() - began < 20


def test_an_empty_variable_switches_the_instrumentation_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWERBAND_ATTACH", "")
    code = "import os, sys; print('powerband_attach' in sys.modules, repr(os.environ['POWERBAND_ATTACH'])); exit(3)"
    assert main(["profile", "--", sys.executable, "-c", code]) == 3
    out, err = capfd.readouterr()
    assert out == "False ''\n" and "POWERBAND_ATTACH is empty" in err
    assert main(["profile", "--", sys.executable, "-c", "pass"]) == 0
    assert "POWERBAND_ATTACH is empty" in capfd.readouterr().err
    for words in (["audit", "--"], ["profile", "--try", "--"]):
        assert main([*words, sys.executable, "-c", code]) == 2
        assert "Unset it for powerband" in capfd.readouterr().err
    assert powerband.attach().profile() is None and "powerband_attach" not in sys.modules


def test_a_window_with_many_updates_and_few_environment_steps_is_long_enough() -> None:
    lines = [times(second, 1000 * second, counts={"env": second}, env_steps=second) for second in (0, 1, 2)]
    found = script_profile(
        ["python"], ScriptRun([Record(1, 0, 0, {"rank": "", "argv": []}, lines)], [], 0, 0, 2 * S, 0.0)
    )
    assert found is not None and found.facts.iterations == 2000 and found.diagnosis.cause != "too-short"
