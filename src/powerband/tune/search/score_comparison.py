"""ScoreComparison: scores of short runs with and without a setting, at equal seconds of training."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from powerband.tune.advise.advice import LEARNING_NOT_MEASURED


@dataclass(frozen=True)
class ScoreComparison:
    """Scores of runs of equal duration.

    Attributes:
        score: Name of the score; larger is better.
        seconds: Seconds of training of each run.
        setting, present: Last score of each seed, with the setting and with the present one.
    """

    score: str
    seconds: float
    setting: list[float]
    present: list[float]

    @property
    def is_worse(self) -> bool:
        """Whether the mean score with the setting is below that of the present one."""
        return statistics.mean(self.setting) < statistics.mean(self.present)

    def __str__(self) -> str:
        return (
            f"Learning was measured in short runs: {self.score} {statistics.mean(self.setting):.4g} with the fastest "
            f"setting that changes learning and {statistics.mean(self.present):.4g} with the present one, after "
            f"{self.seconds:g} s of training each, {len(self.setting)} seeds."
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the scores as a JSON value."""
        return {**vars(self), "sentence": str(self)}


def learning_sentence(comparison: ScoreComparison | None, changes_learning: bool) -> str:
    """States what is known about learning; it precedes every gain of a setting that changes it.

    Args:
        comparison: Scores with such a setting; None if they were not measured.
        changes_learning: Whether a shown setting changes what is learned; "" is returned otherwise.
    """
    if not changes_learning:
        return ""
    return str(comparison) if comparison is not None else LEARNING_NOT_MEASURED
