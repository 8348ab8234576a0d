"""RankAgreement: a request on one rank, from its clock or a signal, takes effect on all ranks at the same iteration."""

from __future__ import annotations

import time

import torch

from powerband.core.ranks.ranks import Ranks
from powerband.core.telemetry.phase_clock import PhaseClock

INTERVAL_S = 0.5
"""Seconds between two agreements. Each is one small all-reduce."""


class RankAgreement:
    """Makes a request of any rank, such as to stop or to log, take effect on all ranks at the same iteration.

    A rank that acted on its own clock would stop or log alone, and the other ranks would wait for it forever. The ranks
    therefore exchange their requests at common iterations, about every 0.5 s.

    Args:
        ranks: Group of the ranks that agree.
        clock: Phase clock, which counts the time of agreements as ``collectives``.
    """

    def __init__(self, ranks: Ranks, clock: PhaseClock) -> None:
        self.ranks, self.clock = ranks, clock
        self.restart()

    def restart(self) -> None:
        """Starts a new measurement of the time per iteration, which determines the iteration of the next agreement."""
        self._interval = self._remaining = 1
        self._agreed_at = time.perf_counter()

    def due(self) -> bool:
        """Counts an iteration. True if all ranks must now call `any_rank_wants`; always True for a single rank."""
        self._remaining -= 1
        return self.ranks.world_size == 1 or self._remaining <= 0

    def any_rank_wants(self, *wanted: bool) -> list[bool]:
        """Combines the requests of all ranks. All ranks must call it after `due` returned True.

        Args:
            *wanted: Whether this rank makes each request, such as to stop or to log.

        Returns:
            For each request, whether any rank makes it.
        """
        if self.ranks.world_size == 1:
            return list(wanted)
        now = time.perf_counter()
        iteration_s = max((now - self._agreed_at) / self._interval, 1e-6)
        proposed = min(max(1, int(INTERVAL_S / iteration_s)), 2 * self._interval)
        with self.clock("collectives"):
            requests = torch.tensor([*wanted, -proposed], dtype=torch.int64, device=self.ranks.device)
            *agreed, negative_interval = self.ranks.max_(requests).tolist()
        self._interval = self._remaining = -negative_interval
        self._agreed_at = now
        return [bool(request) for request in agreed]
