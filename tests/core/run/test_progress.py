"""The spent share of the budget is equal on all ranks, although their clocks differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from powerband.core.ranks.ranks import Ranks
from powerband.core.run.run import Run


@pytest.mark.parametrize(("time_limit_s", "expected"), [(10.0, 0.6), (0.0, 0.2)])
def test_ranks_agree_on_the_largest_share_of_the_time(time_limit_s: float, expected: float) -> None:
    class Slower(Ranks):
        """Another rank has spent 6 of 10 seconds."""

        def max_(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clamp_(min=0.6)

    run: Any = SimpleNamespace(
        settings=SimpleNamespace(time_limit_s=time_limit_s, env_steps=100),
        elapsed_s=5.0,
        env_steps=20,
        ranks=Slower(rank=0, world_size=2),
        device=torch.device("cpu"),
    )
    assert Run.progress.fget(run) == pytest.approx(expected)
