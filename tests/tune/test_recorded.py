"""Advice for loops that learn from what was recorded: threads that make batches ahead, and where the rows lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch

from powerband.core.config import RunConfig
from powerband.loops.offline import OfflineConfig
from powerband.tune.advice import Advice, advise
from powerband.tune.diagnose import diagnose
from powerband.tune.facts import Facts
from powerband.tune.ledger import Ledger
from powerband.tune.measure import Measurement

RECIPE = SimpleNamespace(STAGES={})
ROWS, UPDATES = 32, 100


@dataclass(frozen=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)


def seen(threads: int, making: float, update: float, cpu: float = 0.0) -> Measurement:
    """What a window shows of batches that take `making` seconds, updates of `update`, and `cpu` of both a batch."""
    wait = making if not threads else max(0.0, making / threads - update)
    seconds = {"data_wait": UPDATES * wait, "update": UPDATES * update}
    facts = Facts(iterations=UPDATES, env_steps=UPDATES * ROWS, grad_steps=UPDATES, cores=2, threads=1, batch_rows=ROWS)
    return Measurement([Ledger(sum(seconds.values()), seconds, cpu_s=UPDATES * cpu)], [facts], True)


def advice_of(threads: int, *costs: float) -> dict[int, Advice]:
    config = replace(Config(), offline=OfflineConfig(loader_threads=threads))
    measured = seen(threads, *costs)
    found = advise(RECIPE, config, measured, diagnose(measured.ledgers[0], measured.facts[0]))
    return {each.value: each for each in found if each.knob == "loader_threads"}


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize(("making", "update"), [(0.12, 0.04), (0.05, 0.06), (0.3, 0.02)])
def test_more_threads_are_predicted_as_the_changed_loop_does(threads: int, making: float, update: float) -> None:
    now = seen(threads, making, update)
    found = advice_of(threads, making, update)
    assert bool(found) == (now.ledgers[0].share("data_wait") > 0.03)
    for more, advised in found.items():
        assert advised.steps_per_s == pytest.approx(seen(more, making, update).steps_per_s, rel=1e-6)
        assert not advised.learning and advised.config.offline.loader_threads == more


def test_threads_gain_no_more_than_there_are_cores_for() -> None:
    found = advice_of(0, 0.1, 0.1, 0.2)  # all of it is computed: two cores do it in 0.1 s
    assert max(advised.gain for advised in found.values()) == pytest.approx(2.0)
    assert not advice_of(0, 0.1, 0.1, 0.4), "both cores were busy already"


def test_what_was_recorded_has_no_environments_to_turn() -> None:
    measured = seen(0, 0.1, 0.02)
    found = advise(RECIPE, Config(), measured, diagnose(measured.ledgers[0], measured.facts[0]))
    assert {each.knob for each in found} == {"loader_threads", "place"}


def place_advised(now: str, measured: Measurement, probe: Callable | None) -> tuple[Advice | None, list[str]]:
    config, found = Config(offline=OfflineConfig(place=now)), diagnose(measured.ledgers[0], measured.facts[0])
    advice = advise(RECIPE, config, measured, found, probe)
    return next((each for each in advice if each.knob == "place"), None), found.remarks


@pytest.mark.parametrize("now", ["auto", "host"])
def test_on_a_processor_the_place_of_rows_cannot_help(now: str) -> None:
    advised, _ = place_advised(now, seen(0, 0.1, 0.02), probe=None)
    assert advised.gain == 1.0 and advised.config is None and "cannot help" in advised.why
    assert place_advised(now, seen(0, 0.0001, 0.02), probe=None)[0] is None, "nothing waits for batches"
    assert place_advised("device", seen(0, 0.1, 0.02), probe=None)[0] is None


def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerband.tune.advice.device_names", lambda run: ["cuda:0"])


@pytest.mark.parametrize("now", ["auto", "host"])
def test_rows_on_the_device_are_predicted_from_a_short_run(now: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch)
    tried = []

    def probe(changed: Config) -> Measurement:
        tried.append(changed.offline.place)
        return seen(0, 0.01, 0.02)

    advised, _ = place_advised(now, seen(0, 0.1, 0.02), probe)
    assert tried == ["device"] and advised.probed and advised.config.offline.place == "device"
    assert advised.steps_per_s == pytest.approx(seen(0, 0.01, 0.02).steps_per_s)
    same, _ = place_advised(now, seen(0, 0.1, 0.02), lambda changed: seen(0, 0.1, 0.02))
    assert same is None, "auto had put them there, or the gather is as slow"


def test_without_a_short_run_what_rows_on_the_device_gain_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch)
    advised, _ = place_advised("host", seen(0, 0.03, 0.02), probe=None)
    assert advised.gain == pytest.approx(2.5) and advised.why.startswith("at most") and not advised.probed
    assert place_advised("auto", seen(0, 0.03, 0.02), probe=None)[0] is None, "they may lie there already"


def test_rows_that_do_not_fit_on_the_device_are_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch)

    def probe(changed: Config) -> Measurement:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")

    advised, remarks = place_advised("host", seen(0, 0.1, 0.02), probe)
    assert advised is None and any("place=device was not measured: CUDA out of memory" in each for each in remarks)
