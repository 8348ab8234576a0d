"""Ranks agree: what clocks, signals and batches ask for on one of them happens on all, at the same iteration."""

from __future__ import annotations

import time

import torch

from powerband.core.ranks.ranks import Ranks
from powerband.core.telemetry.phase_clock import PhaseClock

INTERVAL_S = 0.5
"""Seconds between two agreements; one small all-reduce each."""


class RankAgreement:
    """Ranks cannot look at their own clocks: one would stop or log alone, and the others would wait in a collective for
    ever. They ask each other at iterations that all of them can count to, about every INTERVAL_S seconds.

    Args:
        ranks: Who agrees.
        clock: Has the time of asking as ``collectives``.
    """

    def __init__(self, ranks: Ranks, clock: PhaseClock) -> None:
        self.ranks, self.clock = ranks, clock
        self.restart()

    def restart(self) -> None:
        """Finds the pace anew, from the next iteration on."""
        self._interval = self._left = 1
        self._asked_at = time.perf_counter()

    def due(self) -> bool:
        """Counts an iteration; whether to ask now. A rank that is alone asks itself at each."""
        self._left -= 1
        return self.ranks.world_size == 1 or self._left <= 0

    def any_rank_wants(self, *wanted: bool) -> list[bool]:
        """Whether any rank wants each of these: the same answer on all. A collective, where `due` said so."""
        if self.ranks.world_size == 1:
            return list(wanted)
        now = time.perf_counter()
        pace_s = max((now - self._asked_at) / self._interval, 1e-6)
        proposed = min(max(1, int(INTERVAL_S / pace_s)), 2 * self._interval)
        with self.clock("collectives"):
            asked = torch.tensor([*wanted, -proposed], dtype=torch.int64, device=self.ranks.device)
            *agreed, fewest = self.ranks.max_(asked).tolist()
        self._interval = self._left = -fewest
        self._asked_at = now
        return [bool(each) for each in agreed]
