"""Returns of a rollout: steps whose simulator failed are no transitions, and advantages are normalised."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from powerband.core.ranks.ranks import Ranks
from powerband.data.rollout import Rollout
from powerband.data.types import Step
from powerband.loops.support.returns import GaeReturns


class Critic:
    def value(self, obs: torch.Tensor, carry: None) -> torch.Tensor:
        return obs[:, 0] * 10


@pytest.mark.parametrize("normalize", [False, True])
def test_a_lost_step_is_no_transition_and_advantages_are_normalised(normalize: bool) -> None:
    run: Any = SimpleNamespace(ranks=Ranks(), clock=lambda _: nullcontext())
    learner: Any = Critic()
    returns, rollout = GaeReturns(run, learner, 0.9, 0.5, normalize), Rollout(3, 2, "cpu")
    no, reward, value = torch.zeros(2, dtype=torch.bool), torch.tensor([1.0, 5.0]), torch.tensor([2.0, 3.0])
    for t in range(3):
        lost = torch.tensor([False, t == 1])
        step = Step(torch.zeros(2, 1), reward, no, lost, torch.zeros(2, 1), lost=lost if t == 1 else None)
        rollout.store(t, {"reward": reward, "value": value, "terminated": no, "truncated": lost})
        returns.after_step(t, rollout, step, None)
    data = returns.finish(rollout, torch.full((2, 1), 0.2), None)
    assert data["advantages"][1, 1] == 0 and float(data["returns"][1, 1]) == pytest.approx(3.0)
    if normalize:
        plain = data["returns"] - rollout.data["value"]
        expected = (plain - plain.mean()) / plain.std(correction=0)
        expected[1, 1] = 0.0
        torch.testing.assert_close(data["advantages"], expected)
