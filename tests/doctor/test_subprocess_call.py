"""Tests of `call_in_subprocess`: every kind of failure is described, and no process survives the call."""

from __future__ import annotations

import os
import time

import pytest

from powerband.doctor.subprocess_call import call_in_subprocess, describe


def test_the_return_value_is_independent_of_printed_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    outcome = call_in_subprocess(
        "doctor.faulty:answer", [1, "a"], timeout_s=60, environment={"DOCTOR_TEST": "b", "HOME": None}
    )
    assert outcome.value == [1, "a", "b", None] and not outcome.problem and not outcome.kind
    assert "simulators print" in outcome.output


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        ("raises", "error", "RuntimeError: the license has expired"),
        ("unprintable", "error", "EGLError: EGL_BAD_ALLOC in unprintable"),
        ("crash", "crash", "died of SIGSEGV"),
        ("leaves", "crash", "ended with status 3 and without a result"),
        ("asks", "error", "EOFError"),
        ("nothing", "error", "AttributeError"),
    ],
)
def test_each_kind_of_failure_is_described(function: str, kind: str, text: str) -> None:
    outcome = call_in_subprocess(f"doctor.faulty:{function}", [], timeout_s=60)
    assert (outcome.value, outcome.kind) == (None, kind)
    assert text in outcome.problem and "\n" not in outcome.problem


def test_a_subprocess_that_hangs_is_killed_with_its_children() -> None:
    started = time.monotonic()
    outcome = call_in_subprocess("doctor.faulty:hang", [], timeout_s=4)
    assert time.monotonic() - started < 20
    assert outcome.kind == "hang" and outcome.problem == "gave no answer within 4 s and was ended"
    grandchild = int(outcome.output.split("grandchild")[1].split()[0])
    for _ in range(100):  # init may need a moment to reap the orphan
        if not _runs(grandchild):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {grandchild} still runs")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_an_error_without_a_message_is_described_by_its_type() -> None:
    assert describe(ValueError()) == "ValueError"
    assert describe(OSError(2, "gone")) == "FileNotFoundError: [Errno 2] gone"
