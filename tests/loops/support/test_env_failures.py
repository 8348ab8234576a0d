"""Failures of simulators are visible on every rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from powerband.core.ranks.ranks import Ranks
from powerband.envs.workers.supervision import EnvFailure
from powerband.loops.support.env_failures import METRIC, report_env_failure


@pytest.mark.parametrize("rank", [0, 1])
def test_failures_are_counted_and_printed_on_each_rank(rank: int, capsys: pytest.CaptureFixture) -> None:
    counted: list[str] = []
    notes: list[str] = []
    run: Any = SimpleNamespace(
        ranks=Ranks(rank=rank, world_size=2),
        metrics=SimpleNamespace(add_count=counted.append),
        console=SimpleNamespace(note=notes.append),
    )
    report_env_failure(run, EnvFailure(3, 0, "raised", "RuntimeError: the gripper broke"))
    message = capsys.readouterr().err
    assert counted == [METRIC] and len(notes) == (rank == 0)
    assert "the gripper broke" in (message if rank else notes[0]) and ("rank 1:" in message) == (rank == 1)
