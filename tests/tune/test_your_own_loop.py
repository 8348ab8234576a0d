"""The example of training loops outside of powerband: their ledgers are complete and have a diagnosis."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import powerband
from powerband.tune.diagnose.causes import CAUSES

EXAMPLE = Path(powerband.__file__).parents[2] / "examples" / "diagnose_your_own_loop.py"


@pytest.mark.parametrize(
    ("loop", "accounts", "other"),
    [
        ("dqn", ("env", "act", "store", "sample", "update"), 5.0),
        pytest.param("sb3", ("env", "act", "store", "update"), 15.0, marks=pytest.mark.slow),
    ],
)
def test_external_loop_gets_ledger_and_diagnosis(loop: str, accounts: tuple[str, ...], other: float):
    if loop == "sb3":
        pytest.importorskip("stable_baselines3")
    command = [sys.executable, str(EXAMPLE), loop, "--steps", "1500"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line and line[0].isalpha()}
    shares = {name: float(row[2].rstrip("%")) for name, row in rows.items() if len(row) > 2 and row[2].endswith("%")}
    assert set(accounts) <= set(shares)
    assert sum(shares.values()) == pytest.approx(100, abs=1.0) and shares["other"] < other
    assert any(line.startswith(f"{cause}: ") for cause in CAUSES for line in result.stdout.splitlines())


def test_clock_and_diagnosis_are_imported_without_torch():
    code = "import sys, powerband; assert 'torch' not in sys.modules; powerband.diagnose, powerband.PhaseClock"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
