"""The time limit of collective operations at the start of a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from powerband.core.config import RunConfig
from powerband.core.run import startup


@pytest.mark.parametrize(("stall_s", "limit_s"), [(0.0, 7200.0), (60.0, 7200.0), (5.0, 600.0), (120.0, 14_400.0)])
def test_a_run_that_nothing_watches_has_the_long_limit_of_collectives(
    stall_s: float, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    def meet(timeout_s: float) -> None:
        limits.append(timeout_s)
        raise InterruptedError

    monkeypatch.setattr(startup, "Meeting", SimpleNamespace(from_environment=meet))
    with pytest.raises(InterruptedError):
        startup.prepare_run(SimpleNamespace(run=RunConfig(stall_s=stall_s)), "gym", "train", [])
    assert limits == [limit_s]
