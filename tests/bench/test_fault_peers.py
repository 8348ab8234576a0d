"""The training loop for the comparison with other profilers, with powerband only, and its table of correct labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import powerband
from powerband.tune.diagnose.causes import CAUSES


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(powerband.__file__).parents[2] / "benchmarks" / "diagnosis"))


def test_loop_trains_and_faults_are_diagnosed(benchmarks: Any) -> None:
    from faulty_loop import Dose, run
    from peer_tools import Powerband, Untimed

    assert run(Dose(batch=16), Untimed(), 0.3)["updates"] > 5
    slow = run(Dose("faulty_envs:SlowPendulum-v0", env_ms=50, env_steps=2), Powerband(), 0.5)
    assert slow["labels"][0] == "env-bound" and slow["seen"]["env"] > 0.6
    saving = run(Dose(save_every=2), Powerband(), 0.5)
    assert "save-blocking" in saving["labels"]
    assert "env-bound" not in saving["labels"]


def test_slow_loader_is_diagnosed(benchmarks: Any) -> None:
    from faulty_loop import Dose, run
    from peer_tools import Powerband

    result = run(Dose(load_ms=10), Powerband(), 0.5)
    assert result["labels"][0] == "data-wait" and result["updates"] < 0.5 / 0.02


def test_every_fault_has_a_row_per_tool_with_existing_labels(benchmarks: Any) -> None:
    from fault_peers import FAULTS, RIGHT, TOOLS, comparison

    assert RIGHT.keys() == FAULTS.keys()
    for row in RIGHT.values():
        assert row.keys() == TOOLS.keys() and row["powerband"].keys() <= CAUSES.keys()
    verdict = {"labels": ["RESIDUAL_HEAVY", "HIGH_CPU"], "words": ""}
    assert comparison("eval", "TraceML", verdict, verdict)["right"] == "place"
    assert not comparison("eval", "TraceML", verdict, verdict)["tells_apart"]
    assert comparison("eval", "Fournex", verdict, verdict)["right"] == "no such label"
    assert comparison("tiny batch", "Fournex", verdict, verdict)["right"] == "no"
