"""A gain of a setting that changes learning is never shown before what is known about its score."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from powerband.report.sections.tuning import map_and_table
from powerband.tune.advise.advice import LEARNING_NOT_MEASURED, Advice
from powerband.tune.diagnose.diagnosis import Diagnosis
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.in_process import Measurement
from powerband.tune.measure.ledger import Ledger
from powerband.tune.profile import Profile
from powerband.tune.score.curve import CurvePoint
from powerband.tune.score.trials import short_runs
from powerband.tune.score.trials.trial import TrialRun
from powerband.tune.search import preset
from powerband.tune.search.candidates import Candidate
from powerband.tune.search.score_comparison import ScoreComparison
from powerband.tune.search.search import TuningResult, preferred
from powerband.tune.search.space import SearchSpace
from tune.search.simulated_machine import RECIPE, Config, World


def candidate(rate: float, learning: bool = False, **setting: Any) -> Candidate:
    return Candidate(setting, (setting,), rate, [rate] * 3, learning)


PRESENT = candidate(100)
NEUTRAL = candidate(150, precision="bf16")
CHANGED = candidate(400, learning=True, num_envs=64)


def result(best: Candidate, *verified: Candidate, score: str = "return") -> TuningResult:
    facts = World().measure(RECIPE, "train", Config(), 1.0).facts[0]
    space = SearchSpace(replace(RECIPE, score=score), Config(), facts, "constant-reuse")
    return TuningResult(space, best, PRESENT, [PRESENT, *verified], [PRESENT, *verified], [], 60.0)


def test_first_line_and_preset_state_that_learning_was_not_measured() -> None:
    found = result(CHANGED, NEUTRAL, CHANGED)
    first, *lines = preset.table(found).splitlines()
    assert first == LEARNING_NOT_MEASURED
    rows = [line for line in lines if "x  " in line]
    assert "4.00x" in rows[-1] and "changes learning" in rows[-1]  # settings that change learning come last
    assert preset.preset_header(found, "simulated", [])["gain"].startswith(LEARNING_NOT_MEASURED)
    unchanged = preset.table(result(NEUTRAL, NEUTRAL))
    assert LEARNING_NOT_MEASURED not in unchanged
    assert not preset.preset_header(result(NEUTRAL, NEUTRAL), "simulated", [])["gain"].startswith("Learning")


def test_the_page_states_it_before_the_map() -> None:
    rows = result(CHANGED, NEUTRAL, CHANGED).rows()
    page = map_and_table(rows, LEARNING_NOT_MEASURED)
    assert page.index(LEARNING_NOT_MEASURED) < page.index("<svg") and "changed" in page
    assert LEARNING_NOT_MEASURED not in map_and_table(result(NEUTRAL, NEUTRAL).rows(), LEARNING_NOT_MEASURED)


def test_profile_lists_advice_that_changes_learning_last_and_after_the_sentence() -> None:
    advice = [Advice("overlap", False, True, 150, 1.5, "overlap"), Advice("num_envs", 4, 8, 400, 4.0, "more", True)]
    measured = Measurement([Ledger(1.0, {"env": 1.0})], [WindowFacts(env_steps=100, iterations=10)], True)
    text = str(Profile(measured, Diagnosis("healthy", "Fine.", [], [], measured.ledgers[0]), advice))
    assert text.index("overlap") < text.index(LEARNING_NOT_MEASURED) < text.index("4.00x")
    assert [each.to_dict()["learning_measured"] for each in advice] == [None, False]


@pytest.mark.parametrize(
    ("verified", "chosen"),
    [
        ([PRESENT, NEUTRAL, CHANGED], CHANGED),
        ([PRESENT, NEUTRAL, candidate(152, learning=True, num_envs=32)], NEUTRAL),
        ([PRESENT, candidate(102, precision="bf16"), candidate(101, learning=True, num_envs=32)], PRESENT),
        ([PRESENT, candidate(90, precision="bf16"), CHANGED], CHANGED),
    ],
)
def test_settings_that_leave_learning_unchanged_are_preferred(verified: list[Candidate], chosen: Candidate) -> None:
    assert preferred(verified, PRESENT) is chosen


@pytest.mark.parametrize(("scores", "used"), [((300.0, 200.0), True), ((136.0, 272.0), False)])
def test_short_runs_state_both_scores_and_reject_a_lower_one(monkeypatch, scores, used: bool) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], folder: Path, score: str, target: float, limit_s: float, deadline: float) -> TrialRun:
        commands.append(command)
        value = scores["off_policy.num_envs=64" not in command]
        return TrialRun("paused", [CurvePoint(10, limit_s, value)], 10, limit_s, limit_s)

    monkeypatch.setattr(short_runs, "run_trial", run)
    found = short_runs.with_scores(result(CHANGED, NEUTRAL, CHANGED), "train", [], 5.0, lambda *_: None)
    assert len(commands) == 4 and {word for each in commands for word in each if "seed" in word} == {
        "run.seed=0",
        "run.seed=1",
    }
    first = preset.table(found).splitlines()[0]
    assert first.startswith(f"Learning was measured in short runs: return {scores[0]:g} with")
    assert f"{scores[1]:g} with the present one, after 5 s of training each, 2 seeds" in first
    assert (found.best is CHANGED) == used and (found.best is NEUTRAL) != used
    assert any("its score is lower" in note for note in found.notes) != used


@pytest.mark.parametrize(
    ("failed", "reason"),
    [
        (TrialRun("failed", [], 0, 0.0, 1.0, "a loss is not finite"), "a loss is not finite"),
        (TrialRun("failed", [CurvePoint(10, 1.0, 5.0)], 10, 1.0, 1.0, "a loss is not finite"), "a loss is not finite"),
        (TrialRun("stopped", [CurvePoint(10, 1.0, 5.0)], 10, 1.0, 1.0), "no evaluation ended in time"),
    ],
)
def test_a_setting_whose_run_fails_is_rejected(monkeypatch, failed: TrialRun, reason: str) -> None:
    monkeypatch.setattr(short_runs, "run_trial", lambda *_: failed)
    found = short_runs.with_scores(result(CHANGED, NEUTRAL, CHANGED), "train", [], 5.0, lambda *_: None)
    assert found.best is NEUTRAL and found.comparison is None
    assert "not used" in found.notes[-1] and reason in found.notes[-1]


def test_the_score_of_a_failed_run_is_valid_json() -> None:
    stored = ScoreComparison("return", 10.0, [-math.inf, 2.0], [1.0, math.nan]).to_dict()
    assert json.loads(json.dumps(stored, allow_nan=False))["setting"] == [None, 2.0] and stored["present"] == [
        1.0,
        None,
    ]


def test_a_score_that_cannot_be_measured_leaves_the_sentence(monkeypatch) -> None:
    failed = TrialRun("failed", [], 0, 0.0, 1.0, "a loss is not finite")
    works = TrialRun("paused", [CurvePoint(10, 1.0, 5.0)], 10, 1.0, 1.0)
    commands: list[list[str]] = []

    def run(command: list[str], *_: object) -> TrialRun:
        commands.append(command)
        return works if "off_policy.num_envs=64" in command else failed

    monkeypatch.setattr(short_runs, "run_trial", run)
    written = ["num_envs=16", "threads=4"]
    found = short_runs.with_scores(result(CHANGED, CHANGED), "train", written, 5.0, lambda *_: None)
    assert preset.table(found).startswith(LEARNING_NOT_MEASURED) and found.best is CHANGED
    assert "a loss is not finite" in found.notes[-1]
    assert "num_envs=16" not in commands[0] and "threads=4" in commands[0]  # the setting replaces what the user wrote
    assert "num_envs=16" in commands[1]
    nothing = result(CHANGED, CHANGED, score="")
    assert "names none" in short_runs.with_scores(nothing, "train", [], 5.0, lambda *_: None).notes[-1]
    assert short_runs.with_scores(nothing, "train", [], 0.0, lambda *_: None) is nothing
