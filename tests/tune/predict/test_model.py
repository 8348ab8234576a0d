"""The throughput model compared with simulated loops, and advice about knobs that cannot help."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerband.core.config import RunConfig
from powerband.core.recipe import Algorithm, Recipe
from powerband.core.schedule import UpdateSchedule
from powerband.tune.advise.advise import advise
from powerband.tune.diagnose.diagnosis import diagnose
from powerband.tune.knobs import Knobs
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.in_process import Measurement
from powerband.tune.measure.ledger import Ledger
from powerband.tune.predict.model import Affine, ThroughputModel, fit


@dataclass(frozen=True)
class Loop:
    num_envs: int = 4
    global_batch_size: int = 64
    update_interval: int = 1
    updates_per_interval: int = 0
    learning_starts: int = 1000
    graph_updates: int = 0


@dataclass(frozen=True)
class Config:
    algo: str = "sac"
    num_workers: int = 2
    run: RunConfig = field(default_factory=RunConfig)
    off_policy: Loop = field(default_factory=Loop)


@dataclass(frozen=True)
class NoSettings:
    """Settings of an algorithm without knobs."""


STAGES = {"train": "simulated:train"}
SAC, PPO = (Algorithm("simulated:Learner", NoSettings(), loop) for loop in ("off_policy", "on_policy"))
RECIPE = Recipe(name="simulated", summary="", Config=Config, stages=STAGES, algorithms={"sac": SAC})
ENV_S, ACT_S, ACT_EACH_S, UPDATE_S, UPDATE_ROW_S = 8e-3, 1e-3, 0.1e-3, 2e-3, 30e-6


def simulated(config: Config, iterations: int = 400, probed: bool = True) -> tuple[Ledger, WindowFacts]:
    """Simulates a window of a loop with the costs above, in which workers take 8 ms per step of an environment."""
    loop, seconds = config.off_policy, {"env_wait": 0.0, "act": 0.0, "update": 0.0}
    n, rows = loop.num_envs, loop.global_batch_size
    schedule = UpdateSchedule(loop.update_interval, loop.updates_per_interval or None)
    workers = config.num_workers
    worker_rows = [list(range(n * w // workers, n * (w + 1) // workers)) for w in range(workers)]
    wait, update, grads, pending = max(map(len, worker_rows)) * ENV_S, UPDATE_S + rows * UPDATE_ROW_S, 0, 0
    for _ in range(iterations):
        seconds["act"] += ACT_S + n * ACT_EACH_S
        due = schedule.due(n)
        hidden = min(wait, pending * update) if config.run.overlap else 0.0
        seconds["env_wait"] += wait - hidden
        now, pending = (pending, due) if config.run.overlap else (due, 0)
        seconds["update"] += now * update
        grads += now
    facts = WindowFacts(
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
def test_predictions_match_the_changed_loop(config: Config):
    advice = advice_for(config)
    assert {"overlap", "num_workers", "global_batch_size"} <= {knob for knob, _ in advice}
    for each in advice.values():
        assert each.steps_per_s == pytest.approx(rate(each.config), rel=0.03) if each.gain > 1 else True, each
        assert each.gain == pytest.approx(each.steps_per_s / rate(config), rel=0.01)


def test_longer_interval_with_more_updates_cannot_help():
    advice = advice_for(Config())[("update_interval", 10)]
    assert advice.gain == 1.0 and "total work is unchanged" in advice.why and advice.config is None
    longer = rate(Config(off_policy=Loop(update_interval=10)))
    assert longer == pytest.approx(rate(Config()), rel=0.02)


def test_fewer_updates_per_transition_help_and_change_learning():
    config = Config(off_policy=Loop(update_interval=4, updates_per_interval=4))
    advice = advice_for(config)[("updates_per_interval", 2)]
    assert advice.learning and advice.steps_per_s == pytest.approx(rate(advice.config), rel=0.02)


@given(st.floats(1e-4, 1), st.floats(1e-4, 1), st.integers(1, 64), st.integers(1, 64))
def test_overlap_gains_at_most_the_smaller_part(wait_s: float, update_s: float, n: int, updates: int):
    seconds = {"env_wait": wait_s * 10, "update": update_s * 10, "act": 0.1}
    facts = WindowFacts(iterations=10, env_steps=10 * n, grad_steps=10 * updates, num_envs=n)
    model = fit(Ledger(sum(seconds.values()), seconds), facts)
    gain = model.with_overlap().steps_per_s / model.steps_per_s
    assert 1.0 <= gain <= 2.0
    assert model.iteration_s - model.with_overlap().iteration_s == pytest.approx(min(wait_s, update_s))
    assert model.with_overlap().iteration_s >= max(wait_s, update_s)


def test_workers_are_limited_by_environments_and_cores():
    busy = Config(off_policy=Loop(num_envs=4))
    ledger, facts = simulated(busy)
    facts = replace(facts, cores=2, env_cpu_s=ENV_S * facts.env_steps)  # the simulators use both cores
    measured = Measurement([ledger], [facts], True)
    advice = advise(RECIPE, busy, measured, diagnose(ledger, facts))
    assert "num_workers" not in {each.knob for each in advice}
    assert all(each.value <= 4 for each in advice_for(busy).values() if each.knob == "num_workers")


def test_line_through_two_points_has_no_negative_part():
    assert Affine.from_points(4, 1.0, 16, 4.0) == Affine(0.0, 0.25)
    assert Affine.from_points(4, 1.0, 16, 0.9) == Affine(1.0, 0.0)
    assert Affine.from_points(4, 1.0)(100) == 1.0


def test_knobs_are_those_of_the_running_algorithm():
    @dataclass(frozen=True)
    class Two(Config):
        on_policy: Loop = field(default_factory=lambda: Loop(num_envs=99))

    recipe = Recipe(name="two", summary="", Config=Two, stages=STAGES, algorithms={"sac": SAC, "ppo": PPO})
    assert Knobs(recipe, Two()).get("num_envs") == 4 and Knobs(recipe, Two(algo="ppo")).get("num_envs") == 99
    with_value = Knobs(recipe, Two(algo="ppo")).with_value("num_envs", 7)
    assert with_value.on_policy.num_envs == 7 and with_value.off_policy.num_envs == 4
    short = Knobs(recipe, Two()).for_measurement("here", 5.0)
    assert short.off_policy.learning_starts == 8 and short.run.time_limit_s == 5.0 and short.run.run_dir == "here"


def test_graphs_are_predicted_from_the_idle_time_of_the_device(monkeypatch):
    monkeypatch.setattr("powerband.tune.advise.adviser.device_names", lambda run: ["cuda:0"])
    config = Config(off_policy=Loop(graph_updates=0, num_envs=4, update_interval=1))
    ledger, facts = simulated(config)
    half = {**ledger.seconds, "launch": ledger.seconds["update"] / 2, "update": ledger.seconds["update"] / 2}
    waiting = replace(ledger, seconds=half, launch={"update": half["launch"]})
    advice = advise(RECIPE, config, Measurement([waiting], [facts], True), diagnose(waiting, facts))
    graphs = next(each for each in advice if each.knob == "graph_updates")
    saved = half["launch"] / waiting.wall_s
    assert graphs.value == 4 and graphs.gain == pytest.approx(1 / (1 - saved), rel=0.02)


def test_two_ranks_are_measured_if_there_are_cores():
    config = Config()
    ledger, facts = simulated(config)
    tried = []

    def probe(changed: Config) -> Measurement:
        tried.append(changed.run)
        single, facts = simulated(changed, 100)
        return Measurement([replace(single, wall_s=single.wall_s / 1.5)], [facts], True)

    def knobs(cores: int) -> dict:
        measured = Measurement([ledger], [replace(facts, cores=cores)], True)
        diagnosis = diagnose(ledger, measured.facts[0])
        return {each.knob: each for each in advise(RECIPE, config, measured, diagnosis, probe, with_ranks=True)}

    ranks = knobs(cores=4)["nproc"]
    assert ranks.gain == pytest.approx(1.5, rel=0.02) and ranks.probed and not ranks.learning
    assert (ranks.config.run.nproc, ranks.config.run.threads) == (2, 2) and any(run.nproc == 2 for run in tried)
    tried.clear()
    assert "nproc" not in knobs(cores=1) and all(run.nproc == 1 for run in tried)


@pytest.mark.parametrize(("second", "advised"), [(1.12, True), (0.9, False)])
def test_small_gain_of_one_short_run_is_measured_again(second: float, advised: bool):
    config, gains = Config(), iter([1.1, second])
    ledger, facts = simulated(config)

    def probe(changed: Config) -> Measurement:
        single, facts = simulated(config, 100)
        factor = next(gains) if changed.run.nproc == 2 else 1.0
        return Measurement([replace(single, wall_s=single.wall_s / factor)], [facts], True)

    measured = Measurement([ledger], [replace(facts, cores=4)], True)
    advice = advise(RECIPE, config, measured, diagnose(ledger, measured.facts[0]), probe, with_ranks=True)
    ranks = [each for each in advice if each.knob == "nproc"]
    assert bool(ranks) == advised and next(gains, None) is None
    assert not ranks or ranks[0].gain == pytest.approx(1.11, rel=0.02)


def test_recorded_data_has_no_environments_to_scale_with() -> None:
    facts = WindowFacts(iterations=10, env_steps=640, grad_steps=10, batch_rows=64, num_envs=0)
    model = fit(Ledger(10.0, {"update": 10.0}), facts)
    assert model.with_envs(0).steps_per_s == model.steps_per_s == pytest.approx(64.0)


def test_an_iteration_adds_the_seconds_of_its_parts() -> None:
    """8 environments take 0.8 + 1.6 + 0.3 s, other work 0.5 s, and 2 updates of 64 rows 2 (0.1 + 0.64 + 0.05) s."""
    model = ThroughputModel(
        num_envs=8,
        steps=8,
        updates=2,
        rows=64,
        env=Affine(0.0, 0.1),
        wait=Affine(0.0, 0.2),
        act=Affine(0.3, 0.0),
        update=Affine(0.1, 0.01),
        comm=0.05,
        fixed=0.5,
    )
    assert model.iteration_s == pytest.approx(0.8 + 1.6 + 0.3 + 0.5 + 2 * 0.79)
    halves = model.with_ranks(2, comm=0.2)  # each rank steps 4 environments and has half of each batch
    assert halves.iteration_s == pytest.approx(0.4 + 0.8 + 0.3 + 0.5 + 2 * (0.1 + 0.32 + 0.2))
    assert halves.steps == model.steps, "steps are counted over all ranks"
    quarters = model.with_minibatches(4)  # four times the updates, each with a quarter of the rows
    assert quarters.iteration_s == pytest.approx(0.8 + 1.6 + 0.3 + 0.5 + 8 * (0.1 + 0.16 + 0.05))
    assert model.with_overlap().iteration_s == pytest.approx(0.8 + 1.6 + 0.3 + 0.5)


def test_the_model_of_a_window_repeats_its_rate() -> None:
    seconds = {"env": 1.0, "env_wait": 2.0, "act": 3.0, "update": 4.0, "sample": 0.5, "collectives": 1.5, "eval": 8.0}
    facts = WindowFacts(iterations=10, env_steps=80, grad_steps=20, num_envs=8, batch_rows=64)
    model = fit(Ledger(20.0, seconds), facts)
    assert model.comm == pytest.approx(1.5 / 20) and model.fixed == pytest.approx(8.0 / 10)
    assert model.steps_per_s == pytest.approx(80 / sum(seconds.values()))
