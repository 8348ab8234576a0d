"""Learning curves: the time to a score, the best score, and the seconds that rank a trial that did not reach it.

Seconds are seconds of training, without preparation and without evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONSECUTIVE = 3
"""Successive evaluations that must be at or above the target; a single one may be luck."""


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation of a run.

    Attributes:
        env_steps: Environment steps before the evaluation, over all ranks.
        seconds: Seconds of training before the evaluation.
        score: Score of the policy; larger is better.
    """

    env_steps: int
    seconds: float
    score: float


Curve = Sequence[CurvePoint]


def time_to_score(curve: Curve, target: float, consecutive: int = CONSECUTIVE) -> float | None:
    """Returns the seconds to the first of `consecutive` successive evaluations at or above `target`; None if never."""
    reached = 0
    for index, point in enumerate(curve):
        reached = reached + 1 if point.score >= target else 0
        if reached == consecutive:
            return curve[index - consecutive + 1].seconds
    return None


def is_unconfirmed(curve: Curve, target: float, seconds: float) -> bool:
    """Returns whether the next evaluations decide if the score was reached within the first `seconds` of training.

    That is so if the last evaluations are at or above `target`, fewer than `CONSECUTIVE`, and the first of them took
    place within these seconds.
    """
    first = None
    for point in reversed(curve):
        if point.score < target:
            break
        first = point
    return first is not None and first.seconds <= seconds and time_to_score(curve, target) is None


def best_score(curve: Curve, seconds: float = math.inf) -> float | None:
    """Returns the best score within the first `seconds` of training; None if there was no evaluation."""
    return max((point.score for point in curve if point.seconds <= seconds), default=None)


def unfinished_seconds(budget: float, target: float, best: float | None, start: float) -> float:
    """Returns the seconds with which a trial that did not reach the target is compared; smaller is better.

    They are the budget times (1 + the missing share of the way from `start` to `target`). A trial without progress
    counts twice the budget, a trial just below the target counts the budget.

    Args:
        budget: Seconds of training that a trial may take.
        target: Score to reach.
        best: Best score of the trial; None if there was no evaluation, which counts as `start`.
        start: Score of an untrained or barely trained policy.
    """
    missing = max(0.0, target - (start if best is None else best))
    way = target - start if target > start else max(abs(target), 1.0)
    return budget * (1 + missing / way)


def trial_seconds(curve: Curve, budget: float, target: float, start: float, limit: float = math.inf) -> float:
    """Returns the seconds with which a trial (training run) is compared with others; smaller is better.

    Args:
        curve: Evaluations of the trial.
        budget: Seconds of training that a trial may take.
        target: Score to reach.
        start: Score of an untrained or barely trained policy.
        limit: Seconds of training that count; later evaluations are ignored.

    Returns:
        The time to the score if the trial reached it within budget and limit; otherwise `unfinished_seconds`.
    """
    counted = [point for point in curve if point.seconds <= limit]
    reached = time_to_score(counted, target)
    if reached is not None and reached <= budget:
        return reached
    return unfinished_seconds(budget, target, best_score(counted), start)
