"""The examples of loops that are not powerband's: their ledgers are complete and a cause is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import powerband
from powerband.tune.causes import CAUSES

EXAMPLE = Path(powerband.__file__).parents[2] / "examples" / "diagnose_your_own_loop.py"


@pytest.mark.parametrize(
    ("loop", "accounts", "other"),
    [("dqn", ("env", "act", "store", "sample", "update"), 5.0), ("sb3", ("env", "act", "store", "update"), 15.0)],
)
def test_a_foreign_loop_gets_ledger_and_verdict(loop: str, accounts: tuple[str, ...], other: float):
    if loop == "sb3":
        pytest.importorskip("stable_baselines3")
    words = [sys.executable, str(EXAMPLE), loop, "--steps", "1500"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line and line[0].isalpha()}
    shares = {name: float(row[2].rstrip("%")) for name, row in rows.items() if len(row) > 2 and row[2].endswith("%")}
    assert set(accounts) <= set(shares)
    assert sum(shares.values()) == pytest.approx(100, abs=1.0) and shares["other"] < other
    assert any(line.startswith(f"{cause}: ") for cause in CAUSES for line in result.stdout.splitlines())


def test_the_clock_and_the_verdict_come_without_torch_until_they_are_used():
    code = "import sys, powerband; assert 'torch' not in sys.modules; powerband.diagnose, powerband.PhaseClock"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
