"""Advice for loops that learn from recorded data: threads of the batch loader, and the memory that holds the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch

from powerband.core.config import RunConfig
from powerband.core.recipe import Recipe
from powerband.loops.config import OfflineConfig
from powerband.tune.advise.advice import Advice
from powerband.tune.advise.advise import advise
from powerband.tune.diagnose.diagnosis import diagnose
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.in_process import Measurement
from powerband.tune.measure.ledger import Ledger

ROWS, UPDATES = 32, 100


@dataclass(frozen=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)


RECIPE = Recipe(name="recorded", summary="", Config=Config, stages={"train": "recorded:train"})


def simulated(threads: int, preparing: float, update: float, cpu: float = 0.0) -> Measurement:
    """Simulates a window.

    Args:
        threads: Number of loader threads.
        preparing: Seconds to prepare a batch.
        update: Seconds per update.
        cpu: Processor seconds of both, per batch.
    """
    wait = preparing if not threads else max(0.0, preparing / threads - update)
    seconds = {"data_wait": UPDATES * wait, "update": UPDATES * update}
    facts = WindowFacts(
        iterations=UPDATES, env_steps=UPDATES * ROWS, grad_steps=UPDATES, cores=2, threads=1, batch_rows=ROWS
    )
    return Measurement([Ledger(sum(seconds.values()), seconds, cpu_s=UPDATES * cpu)], [facts], True)


def advice_of(threads: int, *costs: float) -> dict[int, Advice]:
    config = replace(Config(), offline=OfflineConfig(loader_threads=threads))
    measured = simulated(threads, *costs)
    advice = advise(RECIPE, config, measured, diagnose(measured.ledgers[0], measured.facts[0]))
    return {each.value: each for each in advice if each.knob == "loader_threads"}


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize(("preparing", "update"), [(0.12, 0.04), (0.05, 0.06), (0.3, 0.02)])
def test_prediction_for_more_threads_matches_the_changed_loop(threads: int, preparing: float, update: float) -> None:
    now = simulated(threads, preparing, update)
    advice = advice_of(threads, preparing, update)
    assert bool(advice) == (now.ledgers[0].share("data_wait") > 0.03)
    for more, advised in advice.items():
        assert advised.steps_per_s == pytest.approx(simulated(more, preparing, update).steps_per_s, rel=1e-6)
        assert not advised.learning and advised.config.offline.loader_threads == more


def test_cores_limit_the_gain_of_threads() -> None:
    advice = advice_of(0, 0.1, 0.1, 0.2)  # 0.2 processor seconds take two cores 0.1 s
    assert max(advised.gain for advised in advice.values()) == pytest.approx(2.0)
    assert not advice_of(0, 0.1, 0.1, 0.4), "both cores are busy"


def test_recorded_data_gets_no_advice_about_environments() -> None:
    measured = simulated(0, 0.1, 0.02)
    advice = advise(RECIPE, Config(), measured, diagnose(measured.ledgers[0], measured.facts[0]))
    assert {each.knob for each in advice} == {"loader_threads", "place"}


def place_advice(now: str, measured: Measurement, probe: Callable | None) -> tuple[Advice | None, list[str]]:
    config, diagnosis = Config(offline=OfflineConfig(place=now)), diagnose(measured.ledgers[0], measured.facts[0])
    advice = advise(RECIPE, config, measured, diagnosis, probe)
    return next((each for each in advice if each.knob == "place"), None), diagnosis.notes


@pytest.mark.parametrize("now", ["auto", "host"])
def test_place_cannot_help_on_a_cpu(now: str) -> None:
    advised, _ = place_advice(now, simulated(0, 0.1, 0.02), probe=None)
    assert advised.gain == 1.0 and advised.config is None and "cannot help" in advised.why
    assert place_advice(now, simulated(0, 0.0001, 0.02), probe=None)[0] is None, "the loop does not wait for batches"
    assert place_advice("device", simulated(0, 0.1, 0.02), probe=None)[0] is None


def use_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerband.tune.advise.adviser.device_names", lambda run: ["cuda:0"])


@pytest.mark.parametrize("now", ["auto", "host"])
def test_rows_on_the_device_are_measured_in_a_short_run(now: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpu(monkeypatch)
    tried = []

    def probe(changed: Config) -> Measurement:
        tried.append(changed.offline.place)
        return simulated(0, 0.01, 0.02)

    advised, _ = place_advice(now, simulated(0, 0.1, 0.02), probe)
    assert tried == ["device"] and advised.probed and advised.config.offline.place == "device"
    assert advised.steps_per_s == pytest.approx(simulated(0, 0.01, 0.02).steps_per_s)
    same, _ = place_advice(now, simulated(0, 0.1, 0.02), lambda changed: simulated(0, 0.1, 0.02))
    assert same is None, "auto chose the device already, or the gather is as slow"


def test_without_probe_the_gain_of_rows_on_the_device_is_an_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpu(monkeypatch)
    advised, _ = place_advice("host", simulated(0, 0.03, 0.02), probe=None)
    assert advised.gain == pytest.approx(2.5) and advised.why.startswith("at most") and not advised.probed
    assert place_advice("auto", simulated(0, 0.03, 0.02), probe=None)[0] is None, (
        "the rows may be on the device already"
    )


def test_rows_that_do_not_fit_on_the_device_give_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpu(monkeypatch)

    def probe(changed: Config) -> Measurement:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")

    advised, notes = place_advice("host", simulated(0, 0.1, 0.02), probe)
    assert advised is None and any("place=device was not measured: CUDA out of memory" in each for each in notes)
