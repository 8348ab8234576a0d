"""Options of ``powerband tune objective=throughput``. This file does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from powerband.core.config.ranges import Range, Seconds, check_ranges

LearningRule = Literal["fixed", "constant-reuse", "sqrt-lr"]
MIN_WINDOW_S, MAX_WINDOW_S = 20.0, 3600.0


@dataclass(frozen=True)
@check_ranges
class SearchOptions:
    """Options of ``powerband tune objective=throughput``, such as the time budget and memory limit of the search."""

    seconds: Annotated[float, Range(at_least=MIN_WINDOW_S, at_most=MAX_WINDOW_S)] = 60.0
    """Budget of the search, without a first compilation; a measurement in progress is finished."""
    learning: LearningRule = "fixed"
    """fixed changes nothing that affects learning; constant-reuse changes environments and batch; sqrt-lr also changes
    learning rates."""
    memory_gib: Annotated[float, Range(at_least=0, at_most=1e6)] = 0.0
    """Memory limit of a setting, for one GPU or for all ranks on the CPU; 0 is 90 % of the free memory."""
    score_seconds: Seconds = 0.0
    """Seconds of training of each run that measures the score of a setting which changes learning, next to the present
    setting; two seeds of each, in addition to `seconds`. 0 does not measure it."""
