"""The loop that powerband and its peers are compared on, without the peers; and the table of what counts as right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import powerband
from powerband.tune.causes import CAUSES


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(powerband.__file__).parents[2] / "benchmarks"))


def test_the_loop_trains_and_is_told_apart_with_and_without_a_fault(benchmarks: Any) -> None:
    from faulty_loop import Dose, run
    from peer_tools import Powerband, Untimed

    assert run(Dose(batch=16), Untimed(), 0.3)["updates"] > 5
    slow = run(Dose("faulty_envs:SlowPendulum-v0", env_ms=50, env_steps=2), Powerband(), 0.5)
    assert slow["labels"][0] == "env-bound" and slow["seen"]["env"] > 0.6
    saving = run(Dose(save_every=2), Powerband(), 0.5)
    assert "save-blocking" in saving["labels"]
    assert "env-bound" not in saving["labels"]


def test_a_slow_loader_is_the_loops_input(benchmarks: Any) -> None:
    from faulty_loop import Dose, run
    from peer_tools import Powerband

    seen = run(Dose(load_ms=10), Powerband(), 0.5)
    assert seen["labels"][0] == "data-wait" and seen["updates"] < 0.5 / 0.02


def test_every_fault_has_a_row_for_every_tool_in_labels_that_exist(benchmarks: Any) -> None:
    from fault_peers import FAULTS, RIGHT, TOOLS, judged

    assert RIGHT.keys() == FAULTS.keys()
    for row in RIGHT.values():
        assert row.keys() == TOOLS.keys() and row["powerband"].keys() <= CAUSES.keys()
    said = {"labels": ["RESIDUAL_HEAVY", "HIGH_CPU"], "words": ""}
    assert judged("eval", "TraceML", said, said)["right"] == "place"
    assert not judged("eval", "TraceML", said, said)["tells_apart"]
    assert judged("eval", "Fournex", said, said)["right"] == "no such label"
    assert judged("tiny batch", "Fournex", said, said)["right"] == "no"
