"""Rungs: successive halving over seconds of training, with trials that are paused and continued.

A trial first runs to the lowest rung. The best third of the trials on a rung is promoted to the next one, at any time
(asynchronous successive halving). Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from powerband.tune.score.curve import Curve, best_score, time_to_score, trial_seconds
from powerband.tune.score.restricted_mean import restricted_mean

REDUCTION = 3
"""Factor between two rungs, and the share of trials that is promoted is one over it."""
RUNGS = 3


def rung_seconds(budget: float) -> list[float]:
    """Returns the seconds of training of each rung, the lowest first; the last is the budget of a trial."""
    return [budget / REDUCTION**exponent for exponent in reversed(range(RUNGS))]


def setting_key(params: Mapping[str, Any]) -> str:
    """Returns a text that is equal for equal coordinates."""
    return json.dumps(dict(params), sort_keys=True)


@dataclass(frozen=True)
class TrialRecord:
    """One start of a trial, as the study stores it. Seconds are those of the machine that reads it.

    Attributes:
        params: Coordinates of the setting.
        seed: Seed of the run.
        rung: Highest rung that it reached; -1 for none.
        outcome: Outcome of `trial.TrialRun`.
        curve: Evaluations from the first start on.
        env_steps, seconds: Steps, and seconds of training.
        wall_s: Seconds of this start.
        machine: Machine that ran it.
        folder: Run folder on that machine.
        message: Reason of a failure.
    """

    params: Mapping[str, Any]
    seed: int
    rung: int
    outcome: str
    curve: Curve
    env_steps: int = 0
    seconds: float = 0.0
    wall_s: float = 0.0
    machine: str = ""
    folder: str = ""
    message: str = ""

    @property
    def setting_key(self) -> str:
        """Text that is equal for equal coordinates."""
        return setting_key(self.params)

    @property
    def is_done(self) -> bool:
        """Whether the trial cannot be continued, because it reached the score or its budget."""
        return self.outcome in ("reached", "ended") or (self.outcome == "paused" and self.rung == RUNGS - 1)


@dataclass(frozen=True)
class Goal:
    """What trials are compared by.

    Attributes:
        target: Score to reach.
        start: Score of a barely trained policy.
        budget: Seconds of training that a trial may take.
    """

    target: float
    start: float
    budget: float

    def value(self, record: TrialRecord, limit: float = math.inf) -> float:
        """Returns the seconds that a trial counts within `limit` seconds of training; smaller is better."""
        return trial_seconds(record.curve, self.budget, self.target, self.start, limit)


def newest(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Returns the newest record of each trial (setting and seed); failed starts do not count."""
    found: dict[tuple[str, int], TrialRecord] = {}
    for record in records:
        if record.outcome != "failed":
            found[record.setting_key, record.seed] = record
    return list(found.values())


def promotable(records: Iterable[TrialRecord], goal: Goal, machine: str) -> TrialRecord | None:
    """Returns the paused trial to continue next, from the highest rung that has one; None if there is none.

    Args:
        records: All records of the study, in their order.
        goal: What trials are compared by.
        machine: Name of this machine; checkpoints of other machines are out of reach.
    """
    trials, limits = newest(records), rung_seconds(goal.budget)
    for rung in reversed(range(RUNGS - 1)):
        entered = [each for each in trials if each.rung >= rung or each.is_done]
        entered.sort(key=lambda each: goal.value(each, limits[rung]))
        for each in entered[: len(entered) // REDUCTION]:
            if each.outcome == "paused" and each.rung == rung and each.machine == machine:
                return each
    return None


@dataclass(frozen=True)
class SettingResult:
    """The trials of one setting that ended, over its seeds.

    Attributes:
        params: Coordinates of the setting.
        records: Newest record of each seed.
        times: Seconds to the score per seed; None if a seed did not reach it.
        value: Mean of the seconds that the seeds count; smaller is better.
        best_score: Best score of any seed.
    """

    params: Mapping[str, Any]
    records: list[TrialRecord]
    times: list[float | None]
    value: float
    best_score: float

    def mean_s(self, budget: float) -> float:
        """Returns the restricted mean time to the score."""
        return restricted_mean(self.times, budget)


def settings_of(records: Iterable[TrialRecord], goal: Goal, done: bool = True) -> list[SettingResult]:
    """Returns the results of all settings, the best first.

    Args:
        records: All records of the study.
        goal: What trials are compared by.
        done: Leave out trials that could be continued.
    """
    groups: dict[str, list[TrialRecord]] = {}
    for record in newest(records):
        if record.curve and (record.is_done or not done):
            groups.setdefault(record.setting_key, []).append(record)
    results = []
    for group in groups.values():
        value = sum(map(goal.value, group)) / len(group)
        scores = [score for each in group if (score := best_score(each.curve)) is not None]
        times = [time_to_score(each.curve, goal.target) for each in group]
        results.append(SettingResult(group[0].params, group, times, value, max(scores)))
    return sorted(results, key=lambda each: each.value)
