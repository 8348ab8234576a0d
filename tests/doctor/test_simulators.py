"""Simulators that are missing, hang, crash, ask questions, or give NaN."""

from __future__ import annotations

import pytest

from powerband.doctor import simulators
from powerband.doctor.child import Outcome
from powerband.doctor.simulators import simulator_row


def test_a_simulator_that_is_missing_is_skipped_with_its_name_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = simulators.Simulator("simulator_of_nobody", ("x",), "pip install simulator-of-nobody", "none")
    monkeypatch.setitem(simulators.SIMULATORS, "gymnasium", missing)
    row = simulator_row("gymnasium")
    assert row.status == "skipped" and "pip install simulator-of-nobody" in row.advice


@pytest.mark.parametrize(
    ("function", "words", "advice"),
    [
        ("hang", "gave no answer within 3 s", "see where it stops"),
        ("crash", "died of SIGSEGV", "Reinstall it"),
        ("asks", "EOFError", "answer it once"),
        ("raises", "the license has expired", "pip install 'powerband[gym]'"),
    ],
)
def test_a_simulator_that_fails_is_said_and_survived(function: str, words: str, advice: str) -> None:
    row = simulator_row("gymnasium", function=f"doctor.faulty:{function}", timeout_s=3 if function == "hang" else 60)
    assert row.status == "fail" and words in row.measured and advice in row.advice


def test_nan_warns() -> None:
    row = simulator_row("gymnasium", function="doctor.faulty:not_finite")
    assert row.status == "warn" and "not finite" in row.measured and row.figures["steps_per_s"] == 10


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("ModuleNotFoundError: No module named 'packaging'", "pip install packaging"),
        ("AttributeError: 'NoneType' object has no attribute 'eglQueryString'", "section rendering"),
        ("ImportError: Cannot use EGL rendering platform. The PYOPENGL_PLATFORM ...", "unset PYOPENGL_PLATFORM"),
    ],
)
def test_what_simulators_say_is_translated(problem: str, advice: str) -> None:
    assert advice in simulators.why("metaworld", Outcome(problem=problem, kind="error"))


@pytest.mark.parametrize("name", ["gymnasium", "mujoco", "metaworld", "envpool", "robosuite", "libero"])
def test_every_simulator_here_steps(name: str) -> None:
    pytest.importorskip(simulators.SIMULATORS[name].module, exc_type=ImportError)
    row = simulator_row(name)
    assert row.status == "ok", row
    assert name == "libero" or row.figures["steps_per_s"] > 10
