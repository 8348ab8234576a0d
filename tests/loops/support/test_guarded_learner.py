"""Allocations: a tenth of the free memory stays free."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from powerband.core.machine.out_of_memory import OutOfMemory
from powerband.core.ranks.ranks import Ranks
from powerband.loops.support import guarded_learner
from powerband.loops.support.guarded_learner import GuardedLearner


def test_the_reserve_is_not_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    run: Any = SimpleNamespace(ranks=Ranks(device=torch.device("cpu")))
    guarded = GuardedLearner(run, nothing, nothing)
    monkeypatch.setattr(guarded_learner, "free_bytes", lambda device: 1000)
    assert guarded.allocate("rows", 90, lambda rows: rows, lambda: 10) == 90
    with pytest.raises(OutOfMemory, match="Write rows=90 or less; a tenth of the free memory is reserved"):
        guarded.allocate("rows", 91, lambda rows: rows, lambda: 10)
