"""Allocations leave a tenth of the free memory; advice after a failed call counts the rows of an environment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from powerband.core.machine.out_of_memory import OutOfMemory
from powerband.core.ranks.ranks import Ranks
from powerband.loops.config import OnPolicyConfig
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


class LimitedLearner:
    """Learner whose calls fail above 10 rows or sequences."""

    def act(self, obs: torch.Tensor, carry: None, explore: bool) -> None:
        self.update({"obs": obs})

    def update(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if len(batch.get("carry", batch["obs"])) > 10:
            raise MemoryError("out of memory")
        return {}


def test_boards_of_self_play_are_more_rows_than_environments() -> None:
    """8 boards, of which the learner plays both teams on 6, are 14 rows."""
    guard, learner = SimpleNamespace(set_batch=lambda batch, source: None), LimitedLearner()
    run: Any = SimpleNamespace(ranks=Ranks(device=torch.device("cpu")), guard=guard, observer=None)
    config = OnPolicyConfig(num_envs=8, num_steps=2, minibatches=2)
    guarded = GuardedLearner(run, learner, config)  # type: ignore[arg-type]  # the protocol has more methods
    with pytest.raises(OutOfMemory, match="actions for 14 rows .* At most 10 of them fit. Write num_envs=5\\."):
        guarded.act(torch.zeros(14, 3), None)
    rollout = {"obs": torch.zeros(2, 14, 3)}
    with pytest.raises(OutOfMemory, match=r"Write on_policy.minibatches=4 \(7 rows\)"):
        guarded.update({"obs": torch.zeros(14, 3)}, rollout)
    sequences = {"obs": torch.zeros(2, 14, 3), "carry": torch.zeros(14, 1)}
    with pytest.raises(OutOfMemory, match=r"Write on_policy.minibatches=2 \(7 sequences\)"):
        guarded.update(sequences, rollout)
