"""Programs that try faults end with status 1 if a criterion was missed, so that a script that calls them notices."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import powerband

pytest.importorskip("accelerate")

GOOD_SOAK = {"name": "sac", "number": 0, "faults": [], "started_again": 0}
GOOD_SOAK |= {"tracebacks": 0, "different": [], "problems": []}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "soak": ("--faults 0 --kinds kill", {"rows": [GOOD_SOAK]}, {"rows": [GOOD_SOAK | {"different": ["shared/net"]}]}),
    "soak tracebacks": ("--faults 0 --kinds kill", {"rows": []}, {"rows": [GOOD_SOAK | {"tracebacks": 1}]}),
    "soak problems": ("--faults 0 --kinds kill", {"rows": []}, {"rows": [GOOD_SOAK | {"problems": ["kill: late"]}]}),
    "stalls": ("--count 1", {"rows": [{"in time": True}]}, {"rows": [{"in time": False}]}),
    "sigterms": ("--count 1", {"rows": [{"problems": []}]}, {"rows": [{"problems": ["no checkpoint"]}]}),
    "mutations": (
        "--folders 1 --command-lines 0",
        {"folders": {"mutated": 1, "problems": []}},
        {"folders": {"mutated": 1, "problems": ["3: loaded"]}},
    ),
}


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the programs importable; what they set in the environment is removed afterwards."""
    monkeypatch.syspath_prepend(str(Path(powerband.__file__).parents[2] / "benchmarks" / "reliability"))
    for name in ("PYTHONPATH", "POWERBAND_SOAK_NAN"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.mark.parametrize("case", CASES)
def test_a_missed_criterion_ends_with_status_1(
    benchmarks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    options, *results = CASES[case]
    program = importlib.import_module(case.split()[0])
    statuses = []
    for number, stored in enumerate(results):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(stored))
        folder = ["--folder", str(tmp_path / "soak")] if case.startswith("soak") else []
        monkeypatch.setattr(sys, "argv", [case, *options.split(), "--json", str(file), *folder])
        statuses.append(program.main())
    assert statuses == [0, 1]


def test_runs_with_other_bits_are_problems_of_a_soak(benchmarks: None) -> None:
    soak = importlib.import_module("soak")
    rows = [GOOD_SOAK, GOOD_SOAK | {"number": 1, "different": ["shared/net"]}, GOOD_SOAK | {"tracebacks": 2}]
    found = soak.summary(rows)
    assert found["runs with the same bits"] == 2
    assert found["problems"] == ["sac 1: other bits in shared/net", "sac 0: 2 tracebacks"]
