"""Tests of section simulators: missing simulators, and ones that hang, crash, read input or return NaN.

Those that are installed step in the report of tests/doctor/test_checkup.py.
"""

from __future__ import annotations

import pytest

from powerband.doctor.checks import simulators
from powerband.doctor.checks.simulators import simulator_row
from powerband.doctor.subprocess_call import SubprocessResult


def test_a_missing_simulator_is_skipped_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = simulators.Simulator("missing_simulator", ("x",), "pip install missing-simulator", "none")
    monkeypatch.setitem(simulators.SIMULATORS, "gymnasium", missing)
    row = simulator_row("gymnasium")
    assert row.status == "skipped" and "pip install missing-simulator" in row.advice


@pytest.mark.parametrize(
    ("function", "problem", "advice"),
    [
        ("hang", "gave no answer within 3 s", "see where it stops"),
        ("crash", "died of SIGSEGV", "Reinstall it"),
        ("asks", "EOFError", "answer it once"),
        ("raises", "the license has expired", "pip install 'powerband[gym]'"),
    ],
)
def test_a_failing_simulator_is_reported(function: str, problem: str, advice: str) -> None:
    row = simulator_row("gymnasium", function=f"doctor.faulty:{function}", timeout_s=3 if function == "hang" else 60)
    assert row.status == "fail" and problem in row.message and advice in row.advice


def test_nan_warns() -> None:
    row = simulator_row("gymnasium", function="doctor.faulty:not_finite")
    assert row.status == "warn" and "not finite" in row.message and row.metrics["steps_per_s"] == 10


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("ModuleNotFoundError: No module named 'packaging'", "pip install packaging"),
        ("AttributeError: 'NoneType' object has no attribute 'eglQueryString'", "section rendering"),
        ("ImportError: Cannot use EGL rendering platform. The PYOPENGL_PLATFORM ...", "unset PYOPENGL_PLATFORM"),
    ],
)
def test_known_errors_get_specific_advice(problem: str, advice: str) -> None:
    assert advice in simulators.failure_advice("metaworld", SubprocessResult(problem=problem, kind="error"))
