"""Choice of the settings to verify, on simulated rates that the predictions miss as they do on real machines."""

from __future__ import annotations

import itertools

import pytest

from powerband.tune.search.candidates import Candidate
from powerband.tune.search.verification import MAX_FINALISTS, MAX_ROUNDS, MIN_TRIED, Verification

SIZES = frozenset({"batch"})


class World:
    """Simulated machine: each run takes one second and returns its true rate."""

    def __init__(self, truth: dict[tuple, float], budget_s: float) -> None:
        self.truth, self.seconds_left, self.runs = truth, budget_s, []

    def run(self, each: Candidate) -> float | None:
        self.seconds_left -= 1
        self.runs.append(each.setting)
        return self.truth[tuple(each.setting.values())]

    def search(self, baseline: Candidate, candidates: list[Candidate], monkeypatch) -> list[Candidate]:
        clock = itertools.count()  # two readings per run, one second apart
        monkeypatch.setattr("powerband.tune.search.verification.time.perf_counter", lambda: float(next(clock)))
        return Verification(self.run, lambda: self.seconds_left, SIZES).verified(baseline, candidates)


def candidate(ranks: int, precision: str, batch: int, predicted: float, *rates: float) -> Candidate:
    return Candidate({"ranks": ranks, "precision": precision, "batch": batch}, (), predicted, list(rates))


def world(budget_s: float = 12.0) -> tuple[World, Candidate, list[Candidate]]:
    """Simulates a baseline measured at half its rate, so that the predictions of all other settings are too high."""
    truth, candidates = {(): 100.0}, []
    for ranks, precision, batch in itertools.product((1, 2), ("fp32", "bf16"), (512, 1024, 4096)):
        true = 100.0 * (1.6 if batch == 4096 else 1.2 if batch == 1024 else 1.0)
        true *= (0.9 if ranks == 2 else 1.0) * (0.5 if precision == "fp32" else 1.0)
        truth[ranks, precision, batch] = true
        near = (ranks, precision) == (1, "bf16")
        candidates.append(candidate(ranks, precision, batch, (0.5 if near else 2.0) * true))
    return World(truth, budget_s), Candidate({}, (), 50.0, [50.0]), candidates


def test_runs_correct_the_predictions_of_similar_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, baseline, candidates = world()
    tried = machine.search(baseline, candidates, monkeypatch)
    best = max(tried, key=lambda each: each.measured)
    assert best.setting == {"ranks": 1, "precision": "bf16", "batch": 4096} or best.measured >= 0.9 * 160
    assert tried[0] is baseline and len(best.rates) > 1 and len(baseline.rates) > 1


def test_fastest_probe_is_run_second(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, baseline, candidates = world()
    probe = next(each for each in candidates if each.setting == {"ranks": 1, "precision": "bf16", "batch": 4096})
    probe.rates = [155.0]
    tried = machine.search(baseline, candidates, monkeypatch)
    assert machine.runs[2] == probe.setting and tried[2] is probe
    assert max(tried, key=lambda each: each.measured) is probe and 155.0 not in probe.rates


def test_settings_with_a_low_expected_rate_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = {(): 100.0, **{(1, "bf16", batch): 100.0 + batch for batch in range(1, 9)}}
    candidates = [candidate(1, "bf16", batch, 100.0 + batch) for batch in range(1, 9)]
    machine = World(truth, 100.0)
    tried = machine.search(Candidate({}, (), 100.0), candidates, monkeypatch)
    assert len(tried) == 1 + MIN_TRIED and machine.runs[1]["batch"] == 8
    assert len(machine.runs) == 1 + MIN_TRIED + (MAX_ROUNDS - 1) * (1 + min(MIN_TRIED, MAX_FINALISTS))


@pytest.mark.parametrize("budget_s", [0.0, 4.0, 7.0])
def test_budget_limits_the_runs_after_the_first(budget_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, baseline, candidates = world(budget_s)
    machine.search(baseline, candidates, monkeypatch)
    assert len(machine.runs) <= max(budget_s, 1 + MIN_TRIED)


def test_settings_that_fail_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, baseline, candidates = world()
    machine.truth.update({setting: None for setting in machine.truth if setting and setting[0] == 2})
    tried = machine.search(baseline, candidates, monkeypatch)
    assert all(each.setting.get("ranks", 1) == 1 for each in tried) and len(tried) > 1
