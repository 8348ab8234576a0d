"""ScoreComparison: scores of short runs with and without a setting, at equal seconds of training."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from powerband.tune.advise.advice import LEARNING_NOT_MEASURED

SIDES = ("setting", "present")
"""Attributes with the scores of both sides."""


@dataclass(frozen=True)
class ScoreComparison:
    """Scores of short training runs with a changed setting and with the present one, after equal training time.

    Attributes:
        score: Name of the score; larger is better.
        seconds: Seconds of training of each run.
        setting, present: Last score of the run of each seed, with the changed setting and with the present one.
    """

    score: str
    seconds: float
    setting: list[float]
    present: list[float]

    @property
    def is_worse(self) -> bool:
        """Whether the mean score with the changed setting is below that with the present one."""
        return statistics.mean(self.setting) < statistics.mean(self.present)

    def __str__(self) -> str:
        return (
            f"Learning was measured in short runs: {self.score} {statistics.mean(self.setting):.4g} with the fastest "
            f"setting that changes learning and {statistics.mean(self.present):.4g} with the present one, after "
            f"{self.seconds:g} s of training each, {len(self.setting)} seeds."
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the scores as a JSON value."""
        lists = {name: [each if math.isfinite(each) else None for each in getattr(self, name)] for name in SIDES}
        return {**vars(self), **lists, "sentence": str(self)}  # JSON has no infinity, the score of a failed run


def learning_sentence(comparison: ScoreComparison | None, changes_learning: bool) -> str:
    """Formats a sentence about the effect of a setting on the learned score, shown before its gain in throughput.

    Args:
        comparison: Scores with and without the setting; None if they were not measured.
        changes_learning: Whether the setting changes what is learned; if False, the result is "".
    """
    if not changes_learning:
        return ""
    return str(comparison) if comparison is not None else LEARNING_NOT_MEASURED
