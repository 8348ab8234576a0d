"""Tests of section collectives: a rank that dies or hangs is reported with its stage, without waiting for it."""

from __future__ import annotations

import time

import pytest

from doctor.faulty import RANK
from powerband.doctor.checks import collectives
from powerband.doctor.checks.collectives import reduce_row


@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("die", ["rank 1 died of SIGKILL while joining the group", "the other ranks were ended"]),
        ("raise", ["rank 1 ended with status 1", "RuntimeError: no route to host"]),
        ("silent", ["no rank measured anything"]),
    ],
)
def test_a_failed_rank_is_named_without_waiting(mode: str, parts: list[str]) -> None:
    started = time.monotonic()
    row = reduce_row("gloo", ["cpu"], program=f"{RANK}{mode!r})", timeout_s=60)
    assert row.status == "fail" and row.advice and all(part in row.message for part in parts), row
    assert time.monotonic() - started < 20


def test_hanging_ranks_are_killed_and_their_stage_is_reported() -> None:
    started = time.monotonic()
    row = reduce_row("nccl", ["cpu"], program=f"{RANK}'hang')", timeout_s=3)
    assert time.monotonic() - started < 20
    assert row.status == "fail" and "not done after 3 s: rank 0 while joining the group, rank 1" in row.message
    assert "NCCL_DEBUG" in row.advice


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ({"correct": True, "us": 300.0}, "ok"),
        ({"correct": True, "us": 30_000.0}, "warn"),
        ({"correct": False, "us": 300.0}, "fail"),
    ],
)
def test_slow_reductions_warn_and_wrong_sums_fail(result: dict, status: str) -> None:
    sizes = [{"bytes": size, "us": result["us"], "gb_s": 1.0} for size in (4, 2**20, 2**26)]
    assert collectives._measured_row("gloo", {"sizes": sizes, "correct": result["correct"]}).status == status
