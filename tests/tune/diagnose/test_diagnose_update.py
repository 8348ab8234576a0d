"""Diagnosis of a loop with its update function: causes that only a single update reveals."""

from __future__ import annotations

import time

import pytest
import torch

from powerband import PhaseClock, diagnose
from powerband.tune.measure import probes


def looped(update, batch, steps: int = 40) -> PhaseClock:
    clock = PhaseClock()
    clock.restart()
    for _ in range(steps):
        with clock("update"):
            update(batch)
    return clock


@pytest.mark.parametrize(("fixed_ms", "row_us", "cause"), [(8.0, 1.0, "small-batch"), (0.5, 500.0, "update-bound")])
def test_costs_that_grow_with_the_batch_are_separated_from_fixed_costs(fixed_ms, row_us, cause) -> None:
    def update(batch: dict) -> None:
        time.sleep((fixed_ms + row_us * 1e-3 * len(batch["obs"])) * 1e-3)

    batch = {"obs": torch.zeros(16, 3), "others": [torch.zeros(16), (torch.zeros(16, 2),)]}
    assert diagnose(looped(update, batch), update=update, batch=batch).cause == cause


def test_slow_conversions_of_tensors_are_the_cause(monkeypatch) -> None:
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
    diagnosis = diagnose(looped(update, batch), update=update, batch=batch)
    assert diagnosis.cause == "host-sync" and "4 times an iteration" in diagnosis.sentence


@pytest.mark.parametrize("convert", [lambda tensor: tensor.item(), bool, float, int, lambda tensor: [0, 1][tensor]])
def test_every_conversion_is_counted_once_and_tensor_is_restored(convert) -> None:
    before = dict(torch.Tensor.__dict__)
    with probes.SyncCounter() as counter:
        for tensor in (torch.tensor(1), torch.nn.Parameter(torch.tensor(1), requires_grad=False)):
            assert convert(tensor) == 1
            tensor.add(1).sum()
    assert counter.count == 2 and dict(torch.Tensor.__dict__) == before


def test_clock_is_read_before_the_update_is_timed() -> None:
    started = time.perf_counter()
    clock = looped(lambda batch: None, torch.zeros(4))
    called = []
    diagnosis = diagnose(clock, update=lambda batch: called.append(time.perf_counter()), batch=torch.zeros(4))
    assert diagnosis.ledger.wall_s <= called[0] - started


def test_rows_of_named_and_nested_batches_are_repeated() -> None:
    from collections import namedtuple

    pair = namedtuple("pair", "a b")
    batch = pair(torch.arange(3), {"c": [torch.arange(3)]})
    repeated = probes.repeat_rows(batch, 7)
    assert isinstance(repeated, pair) and repeated.a.tolist() == [0, 1, 2, 0, 1, 2, 0] == repeated.b["c"][0].tolist()
