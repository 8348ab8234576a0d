"""Rungs: successive halving over seconds of training, with trials (training runs) that are paused and continued.

A rung is a number of seconds of training at which trials are compared. A trial first runs to the lowest rung. The best
third of the trials on a rung is promoted to the next one, at any time (asynchronous successive halving). Source: Li et
al. 2020, "A System for Massively Parallel Hyperparameter Tuning".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from powerband.tune.score.curve import Curve, best_score, time_to_score, trial_seconds

REDUCTION = 3
"""Factor between two rungs, and the share of trials that is promoted is one over it."""
RUNGS = 3


def rung_seconds(budget: float) -> list[float]:
    """Returns the seconds of training at which trials are compared (rungs of successive halving), the fewest first.

    Args:
        budget: Seconds of training that a trial may take, which is the last rung.
    """
    return [budget / REDUCTION**exponent for exponent in reversed(range(RUNGS))]


def setting_key(params: Mapping[str, Any]) -> str:
    """Returns a text that identifies coordinates (name of a dimension of the search -> value), for use as a key."""
    return json.dumps(dict(params), sort_keys=True)


@dataclass(frozen=True)
class TrialRecord:
    """One start of a trial, a training run with given settings and a given seed. A paused trial can start again.

    Seconds are those of the machine that reads the record.

    Attributes:
        params: Settings as coordinates of the search space: name of a dimension -> value.
        seed: Seed of the run.
        rung: Index of the last rung of successive halving that the trial reached; -1 if it reached none.
        outcome: How the start ended: reached (the score), paused, ended (no steps left), stopped or failed.
        curve: All evaluations of the trial, including those of earlier starts.
        env_steps: Environment steps of the trial.
        seconds: Seconds of training of the trial, including earlier starts.
        wall_s: Duration of this start in seconds.
        machine: Name of the machine that ran it.
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
        """Text that identifies the settings of the trial (`params`), for use as a key."""
        return setting_key(self.params)

    @property
    def is_done(self) -> bool:
        """Whether the trial cannot be continued, because it reached the score or its budget."""
        return self.outcome in ("reached", "ended") or (self.outcome == "paused" and self.rung == RUNGS - 1)


@dataclass(frozen=True)
class Goal:
    """Target score and time budget of the trials of a search, by which the trials are compared.

    Attributes:
        target: Score to reach.
        start: Score of a barely trained policy.
        budget: Seconds of training that a trial may take.
    """

    target: float
    start: float
    budget: float

    def value(self, record: TrialRecord, limit: float = math.inf) -> float:
        """Returns the seconds by which a trial is compared; smaller is better.

        They are the time to the score, or one to two times the budget if the trial did not reach it.

        Args:
            record: Newest record of the trial.
            limit: Seconds of training that count; later evaluations are ignored.
        """
        return trial_seconds(record.curve, self.budget, self.target, self.start, limit)


def newest(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Returns the newest record of each trial (settings and seed), without trials whose newest start failed."""
    found: dict[tuple[str, int], TrialRecord] = {}
    for record in records:
        found[record.setting_key, record.seed] = record
    return [record for record in found.values() if record.outcome != "failed"]


def promotable(records: Iterable[TrialRecord], goal: Goal, is_own: Callable[[TrialRecord], bool]) -> TrialRecord | None:
    """Returns the paused trial to continue next: one of the best third on its rung, from the highest rung possible.

    Args:
        records: All records of the search, the oldest first.
        goal: Target score and time budget, by which trials are compared.
        is_own: Returns whether this search can continue a trial; the others only take part in the comparison.

    Returns:
        The newest record of the trial; None if no trial should continue.
    """
    trials, limits = newest(records), rung_seconds(goal.budget)
    for rung in reversed(range(RUNGS - 1)):
        entered = [each for each in trials if each.rung >= rung or each.is_done]
        entered.sort(key=lambda each: goal.value(each, limits[rung]))
        for each in entered[: len(entered) // REDUCTION]:
            if each.outcome == "paused" and each.rung == rung and is_own(each):
                return each
    return None


@dataclass(frozen=True)
class SettingResult:
    """Results of the trials with one setting and different seeds.

    Attributes:
        params: The setting as coordinates of the search space: name of a dimension -> value.
        records: Newest record of the trial of each seed.
        times: Seconds to the score for each seed; None if the seed did not reach it.
        value: Mean over seeds of the seconds by which trials are compared (`Goal.value`); smaller is better.
        best_score: Best score of any seed.
    """

    params: Mapping[str, Any]
    records: list[TrialRecord]
    times: list[float | None]
    value: float
    best_score: float


def settings_of(records: Iterable[TrialRecord], goal: Goal, done: bool = True) -> list[SettingResult]:
    """Returns the results of all settings that were tried, the best first.

    Args:
        records: All records of the search.
        goal: Target score and time budget, by which trials are compared.
        done: Whether to use only trials that reached the score or their budget, and not those that are paused.
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
