"""Which settings are run, in a made-up world whose true rates the predictions miss as they do on machines."""

from __future__ import annotations

import itertools

import pytest

from powerband.tune.candidates import Candidate
from powerband.tune.verification import IN_TURNS, LEAST_TRIED, TURNS, Verification

SIZES = frozenset({"batch"})


class World:
    """Runs take a second each and give their true rate."""

    def __init__(self, truth: dict[tuple, float], budget_s: float) -> None:
        self.truth, self.left_s, self.ran = truth, budget_s, []

    def run(self, each: Candidate) -> float | None:
        self.left_s -= 1
        self.ran.append(each.setting)
        return self.truth[tuple(each.setting.values())]

    def search(self, present: Candidate, candidates: list[Candidate], monkeypatch) -> list[Candidate]:
        clock = itertools.count()  # two readings a run: each takes a second
        monkeypatch.setattr("powerband.tune.verification.time.perf_counter", lambda: float(next(clock)))
        return Verification(self.run, lambda: self.left_s, SIZES).verified(present, candidates)


def candidate(ranks: int, precision: str, batch: int, predicted: float, *rates: float) -> Candidate:
    return Candidate({"ranks": ranks, "precision": precision, "batch": batch}, (), predicted, list(rates))


def world(budget_s: float = 12.0) -> tuple[World, Candidate, list[Candidate]]:
    """A first measurement that was half of what it should have been makes all that departs from it look too good."""
    truth, found = {(): 100.0}, []
    for ranks, precision, batch in itertools.product((1, 2), ("fp32", "bf16"), (512, 1024, 4096)):
        true = 100.0 * (1.6 if batch == 4096 else 1.2 if batch == 1024 else 1.0)
        true *= (0.9 if ranks == 2 else 1.0) * (0.5 if precision == "fp32" else 1.0)
        truth[ranks, precision, batch] = true
        near = (ranks, precision) == (1, "bf16")
        found.append(candidate(ranks, precision, batch, (0.5 if near else 2.0) * true))
    return World(truth, budget_s), Candidate({}, (), 50.0, [50.0]), found


def test_a_run_corrects_what_its_like_promise_and_the_best_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made, present, candidates = world()
    tried = made.search(present, candidates, monkeypatch)
    best = max(tried, key=lambda each: each.measured)
    assert best.setting == {"ranks": 1, "precision": "bf16", "batch": 4096} or best.measured >= 0.9 * 160
    assert tried[0] is present and len(best.rates) > 1 and len(present.rates) > 1


def test_the_fastest_probe_is_run_second(monkeypatch: pytest.MonkeyPatch) -> None:
    made, present, candidates = world()
    probe = next(each for each in candidates if each.setting == {"ranks": 1, "precision": "bf16", "batch": 4096})
    probe.rates = [155.0]
    tried = made.search(present, candidates, monkeypatch)
    assert made.ran[2] == probe.setting and tried[2] is probe
    assert max(tried, key=lambda each: each.measured) is probe and 155.0 not in probe.rates


def test_what_promises_less_than_what_was_seen_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = {(): 100.0, **{(1, "bf16", batch): 100.0 + batch for batch in range(1, 9)}}
    candidates = [candidate(1, "bf16", batch, 100.0 + batch) for batch in range(1, 9)]
    made = World(truth, 100.0)
    tried = made.search(Candidate({}, (), 100.0), candidates, monkeypatch)
    assert len(tried) == 1 + LEAST_TRIED and made.ran[1]["batch"] == 8
    assert len(made.ran) == 1 + LEAST_TRIED + (TURNS - 1) * (1 + min(LEAST_TRIED, IN_TURNS))


@pytest.mark.parametrize("budget_s", [0.0, 4.0, 7.0])
def test_the_budget_is_kept_but_for_the_first(budget_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    made, present, candidates = world(budget_s)
    made.search(present, candidates, monkeypatch)
    assert len(made.ran) <= max(budget_s, 1 + LEAST_TRIED)


def test_what_cannot_be_run_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made, present, candidates = world()
    made.truth.update({where: None for where in made.truth if where and where[0] == 2})
    tried = made.search(present, candidates, monkeypatch)
    assert all(each.setting.get("ranks", 1) == 1 for each in tried) and len(tried) > 1
