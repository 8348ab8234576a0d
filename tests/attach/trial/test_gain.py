"""Gains of interleaved runs: the interval contains the truth, and a change without a gain is called none."""

from __future__ import annotations

import numpy as np
import pytest

from powerband.attach.trial.change import Change
from powerband.attach.trial.gain import Gain, Timed, gains_of
from powerband.attach.trial.tried import Tried, TriedChanges, best_first


def interleaved(gains: list[float], noise: float, rng: np.random.Generator, drift: float = 0.0) -> list[Timed]:
    """Rates of three rounds of runs with known gains."""
    order: list[int | None] = [each for _ in range(3) for index in range(len(gains)) for each in (None, index)]
    runs = []
    for number, change in enumerate([*order, None]):
        rate = 100 * (1 if change is None else 1 + gains[change]) * np.exp(noise * rng.normal() - drift * number)
        runs.append(Timed(change, float(rate)))
    return runs


def test_a_gain_without_noise_is_exact_and_drift_cancels() -> None:
    found = gains_of(interleaved([0.5, 0.0], 0.0, np.random.default_rng(0), drift=0.03), 2, 3)
    assert [each.gain for each in found if each] == pytest.approx([0.5, 0.0], abs=1e-9)
    assert all(each and each.low == pytest.approx(each.gain, abs=1e-6) for each in found)


def test_the_interval_contains_the_truth_in_most_experiments() -> None:
    truth, rng = [0.3, 0.0, -0.2], np.random.default_rng(1)
    inside = np.zeros(3)
    for _ in range(200):
        for index, gain in enumerate(gains_of(interleaved(truth, 0.05, rng), 3, 3)):
            assert gain is not None and gain.low is not None and gain.high is not None and gain.runs == 3
            inside[index] += gain.low <= truth[index] <= gain.high
    assert (inside / 200 >= 0.88).all() and inside.mean() / 200 < 1.0, inside / 200


def test_fewer_runs_than_asked_for_have_no_interval() -> None:
    runs = interleaved([0.5], 0.01, np.random.default_rng(2))[:3]
    (gain,) = gains_of(runs, 1, 3)
    assert gain is not None and gain.runs == 1 and gain.low is None
    assert gains_of([Timed(None, 1.0)], 1, 3) == [None]


def tried(gain: Gain | None, error: str = "", **fields: object) -> Tried:
    return Tried(Change("threads", 1, "threads: 1", 1.0, **fields), gain, [], error)  # type: ignore[arg-type]


def test_verdicts_and_their_order() -> None:
    cases = {
        "gain": tried(Gain(0.2, 0.1, 0.3, 3)),
        "none": tried(Gain(0.2, -0.1, 0.5, 3)),
        "slower": tried(Gain(-0.2, -0.3, -0.1, 3)),
        "unfinished": tried(Gain(0.2, None, None, 1)),
        "failed": tried(None, "KeyError: 'x'"),
    }
    assert {name: each.verdict for name, each in cases.items()} == {name: name for name in cases}
    ordered = [each.verdict for each in best_first(list(reversed(cases.values())))]
    assert ordered == ["gain", "none", "slower", "unfinished", "failed"]
    assert "+20% [-10%, +50%] none" in cases["none"].line() and "KeyError" in cases["failed"].line()
    kept = TriedChanges([cases["none"]], "updates", [], [])
    assert kept.permanent_lines() == ["# No change has a gain."]
