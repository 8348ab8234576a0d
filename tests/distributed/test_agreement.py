"""Ranks that look at clocks of their own stop and log at the same iterations."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from distributed.ranks import on_ranks
from powerband.core.ranks.agreement import INTERVAL_S, RankAgreement
from powerband.core.ranks.ranks import Ranks
from powerband.core.telemetry.phase_clock import PhaseClock

ITERATIONS = 3_000


def iterate(ranks: Ranks) -> dict[str, torch.Tensor]:
    """Iterations at which the ranks asked, and at which they found that one of them wants to log, or to stop."""
    agreement = RankAgreement(ranks, PhaseClock(ranks.device))
    asked, logged, stopped = [], [], []
    begun, wants_log, wants_stop = time.perf_counter(), False, False
    for iteration in range(ITERATIONS):
        time.sleep(0.0005 if ranks.leads else 0.001)
        passed = time.perf_counter() - begun
        wants_log = wants_log or (ranks.leads and passed > INTERVAL_S)
        wants_stop = not ranks.leads and passed > 3 * INTERVAL_S
        if not agreement.due():
            continue
        asked.append(iteration)
        log, stop = agreement.any_rank_wants(wants_log, wants_stop)
        if log:
            logged.append(iteration)
            wants_log, begun = False, time.perf_counter() if ranks.leads else begun
        if stop:
            stopped.append(iteration)
            break
    return {name: torch.tensor(found) for name, found in (("asked", asked), ("log", logged), ("stop", stopped))}


def test_ranks_stop_and_log_together_and_ask_seldom(tmp_path: Path) -> None:
    first, second = on_ranks(iterate, 2, tmp_path)
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert len(first["stop"]) == 1 and len(first["log"]) >= 1
    assert len(first["asked"]) < int(first["stop"]) / 10


def test_a_rank_that_is_alone_asks_itself_at_each_iteration() -> None:
    agreement = RankAgreement(Ranks(), PhaseClock(torch.device("cpu")))
    for wanted in ((False, True), (True, False)):
        assert agreement.due() and agreement.any_rank_wants(*wanted) == list(wanted)
