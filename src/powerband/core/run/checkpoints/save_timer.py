"""SaveTimer: when checkpoints are due by the clock."""

from __future__ import annotations

import time
from typing import Self

LARGEST_SHARE = 0.01
"""Largest share of the time that saving may take. A checkpoint that takes longer is followed by a longer interval."""


class SaveTimer:
    """Clock of the checkpoints. ``with timer:`` surrounds each save, whatever its reason, and starts the next interval.

    The first checkpoint is due after half an interval, so that a short run is saved too.

    Args:
        interval_s: Seconds between two checkpoints. With 0, no checkpoint becomes due.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._affordable_at = 0.0
        self.restart()

    def restart(self) -> None:
        """Starts the first interval, at the start or resume of a run."""
        self._due_at = time.perf_counter() + self.interval_s / 2

    def due(self) -> bool:
        """True if this rank's clock has passed the interval; the ranks must agree before they save."""
        return self.interval_s > 0 and time.perf_counter() >= self._due_at

    def affordable(self) -> bool:
        """True if one more checkpoint now, in addition to those by the clock, keeps the share of the time."""
        return time.perf_counter() >= self._affordable_at

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        now = time.perf_counter()
        self._affordable_at = now + (now - self._began) * (1 / LARGEST_SHARE - 1)
        self._due_at = max(now + self.interval_s, self._affordable_at)
