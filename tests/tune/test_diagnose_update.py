"""A loop that hands over its update: what only an update by itself can tell, with the healthy loop beside it."""

from __future__ import annotations

import time

import pytest
import torch

from powerband import PhaseClock, diagnose
from powerband.tune import probes


def looped(update, batch, steps: int = 40) -> PhaseClock:
    clock = PhaseClock()
    clock.restart()
    for _ in range(steps):
        with clock("update"):
            update(batch)
    return clock


@pytest.mark.parametrize(("fixed_ms", "row_us", "cause"), [(8.0, 1.0, "small-batch"), (0.5, 500.0, "update-bound")])
def test_a_cost_that_does_not_grow_with_the_batch_is_told_from_one_that_does(fixed_ms, row_us, cause) -> None:
    def update(batch: dict) -> None:
        time.sleep((fixed_ms + row_us * 1e-3 * len(batch["obs"])) * 1e-3)

    batch = {"obs": torch.zeros(16, 3), "beside": [torch.zeros(16), (torch.zeros(16, 2),)]}
    assert diagnose(looped(update, batch), update=update, batch=batch).cause == cause


def test_questions_to_tensors_are_counted_where_each_is_slow(monkeypatch) -> None:
    item = torch.Tensor.item

    def slow(tensor: torch.Tensor) -> float:
        time.sleep(1e-3)
        return item(tensor)

    monkeypatch.setattr(torch.Tensor, "item", slow)

    def update(batch: torch.Tensor) -> None:
        time.sleep(len(batch) * 0.3e-3)
        for _ in range(4):
            batch.sum().item()

    batch = torch.ones(10)
    found = diagnose(looped(update, batch), update=update, batch=batch)
    assert found.cause == "host-sync" and "4 times an iteration" in found.sentence


@pytest.mark.parametrize("ask", [lambda tensor: tensor.item(), bool, float, int, lambda tensor: [0, 1][tensor]])
def test_every_way_of_asking_is_counted_once_and_none_is_changed(ask) -> None:
    before = dict(torch.Tensor.__dict__)
    with probes.CountedQuestions() as asked:
        for asker in (torch.tensor(1), torch.nn.Parameter(torch.tensor(1), requires_grad=False)):
            assert ask(asker) == 1
            asker.add(1).sum()
    assert asked.count == 2 and dict(torch.Tensor.__dict__) == before


def test_the_clock_is_read_before_the_update_is_probed() -> None:
    clock = looped(lambda batch: time.sleep(2e-3), torch.zeros(4))
    found = diagnose(clock, update=lambda batch: time.sleep(2e-3), batch=torch.zeros(4))
    assert found.ledger.wall_s < 0.3 and found.ledger.share("update") > 0.9


def test_rows_of_named_and_nested_batches_are_repeated() -> None:
    from collections import namedtuple

    pair = namedtuple("pair", "a b")
    batch = pair(torch.arange(3), {"c": [torch.arange(3)]})
    found = probes.rows_of(batch, 7)
    assert isinstance(found, pair) and found.a.tolist() == [0, 1, 2, 0, 1, 2, 0] == found.b["c"][0].tolist()
