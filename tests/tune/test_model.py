"""The throughput model against loops that are simulated second by second, and what it knows cannot help."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.core.config import RunConfig
from powerband.core.schedule import UpdateSchedule
from powerband.tune.advice import advise
from powerband.tune.diagnose import diagnose
from powerband.tune.facts import Facts
from powerband.tune.knobs import Knobs
from powerband.tune.ledger import Ledger
from powerband.tune.measure import Measurement
from powerband.tune.model import Affine, fit


@dataclass(frozen=True)
class Loop:
    num_envs: int = 4
    global_batch_size: int = 64
    update_interval: int = 1
    updates_per_interval: int = 0
    warmup: int = 1000
    graph_updates: int = 0


@dataclass(frozen=True)
class Config:
    algo: str = "sac"
    num_workers: int = 2
    run: RunConfig = field(default_factory=RunConfig)
    off_policy: Loop = field(default_factory=Loop)


RECIPE = SimpleNamespace(SECTIONS={"sac": ("off_policy",)}, STAGES={})
ENV_S, ACT_S, ACT_EACH_S, UPDATE_S, UPDATE_ROW_S = 8e-3, 1e-3, 0.1e-3, 2e-3, 30e-6


def simulated(config: Config, iterations: int = 400, probed: bool = True) -> tuple[Ledger, Facts]:
    """What a window would have seen of a loop with these costs: environments of 8 ms a step in worker processes."""
    loop, seconds = config.off_policy, {"env_wait": 0.0, "act": 0.0, "update": 0.0}
    n, rows = loop.num_envs, loop.global_batch_size
    schedule = UpdateSchedule(loop.update_interval, loop.updates_per_interval or None)
    workers = config.num_workers
    worker_rows = [list(range(n * w // workers, n * (w + 1) // workers)) for w in range(workers)]
    wait, update, grads, owed = max(map(len, worker_rows)) * ENV_S, UPDATE_S + rows * UPDATE_ROW_S, 0, 0
    for _ in range(iterations):
        seconds["act"] += ACT_S + n * ACT_EACH_S
        due = schedule.due(n)
        hidden = min(wait, owed * update) if config.run.overlap else 0.0
        seconds["env_wait"] += wait - hidden
        now, owed = (owed, due) if config.run.overlap else (due, 0)
        seconds["update"] += now * update
        grads += now
    facts = Facts(
        iterations=iterations, env_steps=iterations * n, grad_steps=grads, num_envs=n, cores=8, threads=8,
        overlappable=True, can_overlap=True, overlap=config.run.overlap,
        env_step_s=[ENV_S] * n, worker_rows=worker_rows,
        batch_rows=rows, update_s={rows: update, 4 * rows: UPDATE_S + 4 * rows * UPDATE_ROW_S} if probed else {},
    )  # fmt: skip
    return Ledger(sum(seconds.values()), seconds, {}, {}, 0.0, 0.0), facts


def rate(config: Config) -> float:
    ledger, facts = simulated(config)
    return facts.env_steps / ledger.wall_s


def advice_for(config: Config) -> dict:
    ledger, facts = simulated(config)
    measured = Measurement([ledger], [facts], True)

    def probe(changed: Config) -> Measurement:
        ledger, facts = simulated(changed, 100)
        return Measurement([ledger], [facts], True)

    return {(each.knob, each.value): each for each in advise(RECIPE, config, measured, diagnose(ledger, facts), probe)}


@pytest.mark.parametrize("config", [Config(), Config(off_policy=Loop(update_interval=8, updates_per_interval=2))])
def test_predictions_are_what_the_changed_loop_does(config: Config):
    advice = advice_for(config)
    assert {"overlap", "num_workers", "global_batch_size"} <= {knob for knob, _ in advice}
    for each in advice.values():
        assert each.steps_per_s == pytest.approx(rate(each.config), rel=0.03) if each.gain > 1 else True, each
        assert each.gain == pytest.approx(each.steps_per_s / rate(config), rel=0.01)


def test_an_interval_whose_updates_follow_it_cannot_help():
    advice = advice_for(Config())[("update_interval", 10)]
    assert advice.gain == 1.0 and "total work is unchanged" in advice.why and advice.config is None
    longer = rate(Config(off_policy=Loop(update_interval=10)))
    assert longer == pytest.approx(rate(Config()), rel=0.02)


def test_fewer_updates_for_the_same_transitions_do_help_and_change_learning():
    config = Config(off_policy=Loop(update_interval=4, updates_per_interval=4))
    advice = advice_for(config)[("updates_per_interval", 2)]
    assert advice.learning and advice.steps_per_s == pytest.approx(rate(advice.config), rel=0.02)


@given(st.floats(1e-4, 1), st.floats(1e-4, 1), st.integers(1, 64), st.integers(1, 64))
def test_overlap_gains_at_most_the_smaller_side(wait_s: float, update_s: float, n: int, updates: int):
    seconds = {"env_wait": wait_s * 10, "update": update_s * 10, "act": 0.1}
    facts = Facts(iterations=10, env_steps=10 * n, grad_steps=10 * updates, num_envs=n)
    model = fit(Ledger(sum(seconds.values()), seconds), facts)
    gain = model.with_overlap().steps_per_s / model.steps_per_s
    assert 1.0 <= gain <= 2.0
    assert model.iteration_s - model.with_overlap().iteration_s == pytest.approx(min(wait_s, update_s))
    assert model.with_overlap().iteration_s >= max(wait_s, update_s)


def test_no_workers_beyond_the_environments_and_no_gain_without_cores():
    busy = Config(off_policy=Loop(num_envs=4))
    ledger, facts = simulated(busy)
    facts = replace(facts, cores=2, env_cpu_s=ENV_S * facts.env_steps)  # the simulators compute: two cores, two workers
    measured = Measurement([ledger], [facts], True)
    advice = advise(RECIPE, busy, measured, diagnose(ledger, facts))
    assert "num_workers" not in {each.knob for each in advice}
    assert all(each.value <= 4 for each in advice_for(busy).values() if each.knob == "num_workers")


def test_a_line_through_two_points_has_no_negative_part():
    assert Affine.through(4, 1.0, 16, 4.0) == Affine(0.0, 0.25)
    assert Affine.through(4, 1.0, 16, 0.9) == Affine(1.0, 0.0)
    assert Affine.through(4, 1.0)(100) == 1.0


def test_knobs_are_those_of_the_running_algorithm():
    @dataclass(frozen=True)
    class Two(Config):
        on_policy: Loop = field(default_factory=lambda: Loop(num_envs=99))

    recipe = SimpleNamespace(SECTIONS={"sac": ("off_policy",), "ppo": ("on_policy",)})
    assert Knobs(recipe, Two()).get("num_envs") == 4 and Knobs(recipe, Two(algo="ppo")).get("num_envs") == 99
    turned = Knobs(recipe, Two(algo="ppo")).turned("num_envs", 7)
    assert turned.on_policy.num_envs == 7 and turned.off_policy.num_envs == 4
    short = Knobs(recipe, Two()).shortened("here", 5.0)
    assert short.off_policy.warmup == 8 and short.run.time_limit_s == 5.0 and short.run.run_dir == "here"


def test_graphs_are_predicted_from_the_time_the_device_waits_for_the_host(monkeypatch):
    monkeypatch.setattr("powerband.tune.advice.device_names", lambda run: ["cuda:0"])
    config = Config(off_policy=Loop(graph_updates=0, num_envs=4, update_interval=1))
    ledger, facts = simulated(config)
    half = {**ledger.seconds, "launch": ledger.seconds["update"] / 2, "update": ledger.seconds["update"] / 2}
    waiting = replace(ledger, seconds=half)
    found = advise(RECIPE, config, Measurement([waiting], [facts], True), diagnose(waiting, facts))
    graphs = next(each for each in found if each.knob == "graph_updates")
    saved = half["launch"] / waiting.wall_s
    assert graphs.value == 4 and graphs.gain == pytest.approx(1 / (1 - saved), rel=0.02)


def test_two_ranks_are_tried_in_a_run_of_their_own_where_there_are_cores():
    config = Config()
    ledger, facts = simulated(config)
    tried = []

    def probe(changed: Config) -> Measurement:
        tried.append(changed.run)
        own, seen = simulated(changed, 100)
        return Measurement([replace(own, wall_s=own.wall_s / 1.5)], [seen], True)

    def knobs(cores: int) -> dict:
        measured = Measurement([ledger], [replace(facts, cores=cores)], True)
        found = diagnose(ledger, measured.facts[0])
        return {each.knob: each for each in advise(RECIPE, config, measured, found, probe, with_ranks=True)}

    ranks = knobs(cores=4)["nproc"]
    assert ranks.gain == pytest.approx(1.5, rel=0.02) and ranks.probed and not ranks.learning
    assert (ranks.config.run.nproc, ranks.config.run.threads) == (2, 2) and any(run.nproc == 2 for run in tried)
    tried.clear()
    assert "nproc" not in knobs(cores=1) and all(run.nproc == 1 for run in tried)


@pytest.mark.parametrize(("second", "advised"), [(1.12, True), (0.9, False)])
def test_a_small_gain_of_one_short_run_is_measured_again(second: float, advised: bool):
    config, gains = Config(), iter([1.1, second])
    ledger, facts = simulated(config)

    def probe(changed: Config) -> Measurement:
        own, seen = simulated(config, 100)
        factor = next(gains) if changed.run.nproc == 2 else 1.0
        return Measurement([replace(own, wall_s=own.wall_s / factor)], [seen], True)

    measured = Measurement([ledger], [replace(facts, cores=4)], True)
    found = advise(RECIPE, config, measured, diagnose(ledger, measured.facts[0]), probe, with_ranks=True)
    ranks = [each for each in found if each.knob == "nproc"]
    assert bool(ranks) == advised and next(gains, None) is None
    assert not ranks or ranks[0].gain == pytest.approx(1.11, rel=0.02)
