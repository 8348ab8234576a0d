"""Options of ``powerband tune objective=throughput``. This file does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from powerband.core.config import at_least
from powerband.core.errors import ConfigError

LearningRule = Literal["fixed", "constant-reuse", "sqrt-lr"]
MIN_WINDOW_S, MAX_WINDOW_S = 20.0, 3600.0


@dataclass(frozen=True)
class SearchOptions:
    """Options of ``powerband tune`` besides the settings of the recipe."""

    seconds: float = 60.0
    """Budget of the search, without a first compilation; a measurement in progress is finished."""
    learning: LearningRule = "fixed"
    """fixed changes nothing that affects learning; constant-reuse changes environments and batch; sqrt-lr also changes
    learning rates."""
    memory_gib: float = 0.0
    """Memory limit of a setting, for one GPU or for all ranks on the CPU; 0 is 90 % of the free memory."""
    score_seconds: float = 0.0
    """Seconds of training of each run that measures the score of a setting which changes learning, next to the present
    setting; two seeds of each, in addition to `seconds`. 0 does not measure it."""

    def __post_init__(self) -> None:
        if not MIN_WINDOW_S <= self.seconds <= MAX_WINDOW_S:
            raise ConfigError(
                f"seconds={self.seconds:g} is outside {MIN_WINDOW_S:g} to {MAX_WINDOW_S:g}. A search measures several "
                f"settings, some of them repeatedly. Write seconds=60."
            )
        at_least(self, score_seconds=0)
        if self.memory_gib < 0:
            raise ConfigError(
                f"memory_gib={self.memory_gib:g} is below 0. Write memory_gib=8, or 0 for 90 % of the free memory."
            )
