"""A question in a process of its own: every way in which it can go wrong has words, and nothing is left behind."""

from __future__ import annotations

import os
import time

import pytest

from powerband.doctor.child import ask, describe


def test_the_answer_comes_back_whatever_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    outcome = ask("doctor.faulty:answer", [1, "a"], timeout_s=60, environment={"DOCTOR_TEST": "b", "HOME": None})
    assert outcome.value == [1, "a", "b", None] and not outcome.problem and not outcome.kind
    assert "simulators print" in outcome.output


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        ("raises", "error", "RuntimeError: the license has expired"),
        ("unprintable", "error", "EGLError: EGL_BAD_ALLOC in unprintable"),
        ("crash", "crash", "died of SIGSEGV"),
        ("leaves", "crash", "ended with status 3 and without an answer"),
        ("asks", "error", "EOFError"),
        ("nothing", "error", "AttributeError"),
    ],
)
def test_what_goes_wrong_has_words(function: str, kind: str, words: str) -> None:
    outcome = ask(f"doctor.faulty:{function}", [], timeout_s=60)
    assert (outcome.value, outcome.kind) == (None, kind)
    assert words in outcome.problem and "\n" not in outcome.problem


def test_a_child_that_hangs_is_ended_with_what_it_started() -> None:
    started = time.monotonic()
    outcome = ask("doctor.faulty:hang", [], timeout_s=4)
    assert time.monotonic() - started < 20
    assert outcome.kind == "hang" and outcome.problem == "gave no answer within 4 s and was ended"
    grandchild = int(outcome.output.split("grandchild")[1].split()[0])
    for _ in range(100):  # an orphan stays listed until init has taken note
        if not _runs(grandchild):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {grandchild} is still there")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_an_error_without_a_text_is_its_type() -> None:
    assert (
        describe(ValueError()) == "ValueError" and describe(OSError(2, "gone")) == "FileNotFoundError: [Errno 2] gone"
    )
