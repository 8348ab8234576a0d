"""Arithmetic of benchmarks/training/eval_cost.py on runs whose costs are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import powerband

QUIET_S, EVALUATION_S, TICK_S = 10.0, 2.0, 0.01


@pytest.fixture
def eval_cost(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(powerband.__file__).parents[2] / "benchmarks" / "training"))
    import eval_cost

    return eval_cost


def made_up_run(module: Any, inside: bool, busy: float, evaluations: int = 5) -> list:
    """A run whose rate drifts by a third, and that makes `busy` times its steps during evaluations."""
    ticks, wall, steps = [], 0.0, 0.0
    for number in range(1, evaluations + 1):
        rate = 1000 + 100 * number
        for _ in range(round(QUIET_S / TICK_S)):
            wall, steps = wall + TICK_S, steps + rate * TICK_S
            ticks.append(module.Tick(wall, 0.9 * wall, steps, 0))
        parts = 1 if inside else round(EVALUATION_S / TICK_S)
        for part in range(parts):
            duration = EVALUATION_S / parts
            if part == 0 and not inside:
                duration += 0.5  # the checkpoint is written in this iteration
                steps += rate * TICK_S
            else:
                steps += rate * (TICK_S if inside else busy * duration)
            wall += duration + (TICK_S if inside else 0)
            ticks.append(module.Tick(wall, 0.9 * wall, steps, number))
    for _ in range(round(QUIET_S / TICK_S)):
        wall, steps = wall + TICK_S, steps + rate * TICK_S
        ticks.append(module.Tick(wall, 0.9 * wall, steps, 0))
    return ticks


def test_an_evaluation_in_the_training_process_costs_its_duration(eval_cost: Any) -> None:
    ticks = made_up_run(eval_cost, inside=True, busy=0.0)
    found = eval_cost.costs(ticks, "wall", True)
    assert len(found) == 4, "all but the first"
    for each in found:
        assert each.lost_s == pytest.approx(EVALUATION_S, rel=0.05)
    assert eval_cost.ratios(found, True)[0] == pytest.approx(120 / (120 + EVALUATION_S), abs=2e-3)
    cpu = eval_cost.costs(ticks, "cpu", True)
    assert cpu[0].lost_s == pytest.approx(0.9 * EVALUATION_S, rel=0.05)


@pytest.mark.parametrize("busy", [1.0, 0.8])
def test_an_evaluation_in_another_process_costs_what_the_training_slows_down(eval_cost: Any, busy: float) -> None:
    found = eval_cost.costs(made_up_run(eval_cost, inside=False, busy=busy), "wall", False)
    assert len(found) == 4
    for each in found:
        assert each.lost_s == pytest.approx((1 - busy) * EVALUATION_S, abs=0.1), "the checkpoint is not counted"
        assert each.busy == pytest.approx(busy, abs=0.06)
    assert eval_cost.ratios(found, False)[0] == pytest.approx(1 - (1 - busy) * EVALUATION_S / 120, abs=2e-3)


def test_long_evaluations_are_as_rare_as_their_share_allows(eval_cost: Any) -> None:
    long = eval_cost.Cost(seconds=30.0, lost_s=30.0, busy=0.5)
    assert eval_cost.ratios([long], True)[0] == pytest.approx(1 / 1.02, abs=1e-6)
    other = eval_cost.Cost(seconds=240.0, lost_s=120.0, busy=0.5)
    assert eval_cost.ratios([other], False)[0] == pytest.approx(0.5), "it evaluates all the time"


def test_a_run_with_one_evaluation_has_no_cost(eval_cost: Any) -> None:
    assert eval_cost.costs(made_up_run(eval_cost, True, 0.0, evaluations=1), "wall", True) == []
    assert eval_cost.costs([], "wall", False) == []
