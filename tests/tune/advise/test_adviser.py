"""Advice about compiled updates, workers, double buffering and CUDA graphs, on simulated measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest
from torch._inductor.exc import InvalidCxxCompiler

from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.recipe import Algorithm, Recipe
from powerband.tune import profile as profiling
from powerband.tune.advise.advice import Advice
from powerband.tune.advise.advise import advise
from powerband.tune.diagnose.diagnosis import Diagnosis, diagnose
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.in_process import Measurement
from powerband.tune.measure.ledger import Ledger
from powerband.tune.search.space import SearchSpace

STEPS, NUM_ENVS, CORES = 100, 4, 2
ACT_S, UPDATE_S = 1e-3, 4e-3


@dataclass(frozen=True)
class Loop:
    num_envs: int = NUM_ENVS
    num_workers: int = 2
    compile: bool = False
    double_buffer: bool = False


@dataclass(frozen=True)
class Config:
    run: RunConfig = field(default_factory=lambda: RunConfig(gpus="none", precision="bf16"))
    loop: Loop = field(default_factory=Loop)


RECIPE = Recipe(name="simulated", summary="", Config=Config, stages={"train": "simulated:train"})


def simulated(update_s: float = UPDATE_S, act_s: float = ACT_S, updates: int = STEPS, **others: float) -> Measurement:
    """Simulates a window of `STEPS` steps with an update each; `others` are accounts in seconds."""
    seconds = {"act": STEPS * act_s, "update": updates * update_s, **others}
    facts = WindowFacts(
        iterations=STEPS, env_steps=STEPS * NUM_ENVS, grad_steps=updates, num_envs=NUM_ENVS, cores=CORES
    )
    return Measurement([Ledger(sum(seconds.values()), seconds)], [facts], True)


class Probe:
    """Simulates short runs: the results or errors of `compiled` in sequence, and `plain` for other configurations."""

    def __init__(self, compiled: Iterable[Measurement | Exception], plain: Measurement | None = None) -> None:
        self.compiled, self.plain, self.runs = list(compiled), plain or simulated(), 0

    def __call__(self, config: Config) -> Measurement | None:
        if not config.loop.compile:
            return self.plain
        self.runs += 1
        result = self.compiled.pop(0) if len(self.compiled) > 1 else self.compiled[0]
        if isinstance(result, Exception):
            raise result
        return result


def compile_advice(
    probe: Callable | None, measured: Measurement | None = None, config: Config | None = None, with_compile: bool = True
) -> tuple[Advice | None, Diagnosis]:
    measured = measured or simulated()
    diagnosis = diagnose(measured.ledgers[0], measured.facts[0])
    advice = advise(RECIPE, config or Config(), measured, diagnosis, probe, with_compile=with_compile)
    return next((each for each in advice if each.knob == "compile"), None), diagnosis


def test_compiled_updates_are_measured_after_the_run_that_compiles():
    probe = Probe([simulated(10 * UPDATE_S), simulated(0.5 * UPDATE_S)])  # the first window includes compiling
    advice, diagnosis = compile_advice(probe)
    assert probe.runs == 2 and advice.probed and not advice.learning and advice.config.loop.compile
    assert advice.steps_per_s == pytest.approx(simulated(0.5 * UPDATE_S).steps_per_s) and "0.50x as long" in advice.why
    assert not any("compile" in note for note in diagnosis.notes)


def test_run_that_only_compiled_the_actions_is_repeated():
    probe = Probe([simulated(updates=0), simulated(10 * UPDATE_S), simulated(0.5 * UPDATE_S)])
    advice, _ = compile_advice(probe)
    assert probe.runs == 3 and advice.steps_per_s == pytest.approx(simulated(0.5 * UPDATE_S).steps_per_s)
    probe = Probe([simulated(updates=0)])
    advice, diagnosis = compile_advice(probe)
    assert advice is None and probe.runs == 2
    assert any("compile=True was not measured" in note for note in diagnosis.notes)


@pytest.mark.parametrize("factor", [0.99, 1.0, 1.1, 2.0])
def test_compiling_without_gain_is_listed_and_not_applied(factor: float):
    advice, _ = compile_advice(Probe([simulated(factor * UPDATE_S)]))
    assert advice.gain <= 1.0 and advice.config is None and f"{factor:.2f}x as long" in advice.why
    assert advice.steps_per_s == pytest.approx(min(simulated().steps_per_s, simulated(factor * UPDATE_S).steps_per_s))


@pytest.mark.parametrize(("slowdown", "gain"), [(0.9, 1.11), (1.0, 1.0), (1.25, 0.8)])
def test_small_gain_of_compiling_is_measured_again_after_the_unchanged_run(slowdown: float, gain: float):
    small = simulated(0.88 * UPDATE_S)  # 1.11x by the updates
    repeated = simulated(slowdown * UPDATE_S, slowdown * ACT_S)
    advice, _ = compile_advice(Probe([small, small, repeated]))
    assert advice.gain == pytest.approx(gain, abs=0.01) and (advice.config is not None) == (gain > 1)


def test_missing_compiler_gives_one_note():
    advice, diagnosis = compile_advice(Probe([InvalidCxxCompiler()]))
    (note,) = [note for note in diagnosis.notes if "compile" in note]
    assert advice is None and "No working C++ compiler" in note and "\n" not in note and len(note) < 200


@pytest.mark.parametrize(
    ("measured", "config", "with_compile"),
    [
        (simulated(), Config(), False),
        (simulated(), Config(loop=Loop(compile=True)), True),
        (simulated(act_s=3 * UPDATE_S), Config(), True),
    ],
)
def test_nothing_is_compiled_in_a_short_profile_or_if_it_cannot_help(
    measured: Measurement, config: Config, with_compile: bool
):
    probe = Probe([simulated(0.5 * UPDATE_S)])
    assert compile_advice(probe, measured, config, with_compile)[0] is None
    assert not probe.runs or config.loop.compile


@pytest.mark.parametrize(
    ("device", "seconds", "expected"), [("cpu", 20, 0), ("cpu", 30, 1), ("cuda", 9, 0), ("cuda", 10, 1)]
)
def test_only_long_profiles_compile_on_a_cpu(device: str, seconds: float, expected: int, monkeypatch):
    calls: list[dict] = []
    monkeypatch.setattr(profiling, "device_names", lambda settings: [device])
    monkeypatch.setattr(profiling, "measure", lambda *arguments: simulated())
    monkeypatch.setattr(profiling, "advise", lambda *arguments, **options: calls.append(options) or [])
    profiling.profile(RECIPE, "train", Config(), profiling.ProfileOptions(seconds))
    assert calls == [{"with_ranks": seconds >= 10, "with_compile": bool(expected)}]


@pytest.mark.parametrize("slower", [0.5, 2.0])
def test_changing_load_of_the_machine_is_not_attributed_to_compiling(slower: float):
    probe = Probe([simulated(0.5 * slower * UPDATE_S)], plain=simulated(slower * UPDATE_S))
    advice, _ = compile_advice(probe)
    assert "0.50x as long" in advice.why
    assert advice.steps_per_s == pytest.approx(simulated(0.5 * UPDATE_S).steps_per_s)


def workers_advised(cpu_share: float, now: int, cores: int = CORES) -> dict[int, Advice]:
    """Returns advice for simulators that compute for `cpu_share` of their 10 ms per step and wait for the rest."""
    step_s, rows = 10e-3, [list(range(w * NUM_ENVS // now, (w + 1) * NUM_ENVS // now)) for w in range(now)]
    measured = simulated(UPDATE_S / 4, env_wait=STEPS * step_s * NUM_ENVS / now)
    facts = replace(
        measured.facts[0],
        cores=cores,
        env_step_s=[step_s] * NUM_ENVS,
        worker_rows=rows,
        env_cpu_s=cpu_share * step_s * STEPS * NUM_ENVS,
        overlappable=True,
    )
    config = Config(loop=Loop(num_workers=now))
    advice = advise(RECIPE, config, Measurement(measured.ledgers, [facts], True), diagnose(measured.ledgers[0], facts))
    return {each.value: each for each in advice if each.knob == "num_workers"}


def test_only_simulators_that_wait_get_more_workers_than_cores():
    sleeping = workers_advised(0.05, now=2)
    assert sleeping[4].gain == pytest.approx((2 + 20) / (2 + 10), rel=0.01)  # 20 ms of waiting become 10
    assert 1.03 < workers_advised(0.5, now=2)[4].gain < sleeping[4].gain
    for computing in (0.85, 0.9, 1.0):  # 0.85 was measured with llvmpipe
        assert not workers_advised(computing, now=2)
        assert set(workers_advised(computing, now=1)) == {2}, "more workers than cores are not faster"
        assert set(workers_advised(computing, now=2, cores=4)) == {4}


def double_buffer_advice(
    act_s: float, wait_s: float, cpu_share: float = 0.0, probe: Callable | None = None, workers: int = 2, **facts: bool
) -> Advice | None:
    """Returns advice about double buffering, for simulators that compute for `cpu_share` of their time."""
    measured = simulated(UPDATE_S / 4, act_s=act_s, env_wait=STEPS * wait_s)
    worker_facts = {"overlappable": True, "worker_rows": [[0, 1], [2, 3]], **facts}
    window = replace(measured.facts[0], env_cpu_s=2 * cpu_share * wait_s * STEPS, **worker_facts)
    ledger = replace(measured.ledgers[0], cpu_s=STEPS * (act_s + UPDATE_S / 4))
    config, measured = Config(loop=Loop(num_workers=workers)), Measurement([ledger], [window], True)
    advice = advise(RECIPE, config, measured, diagnose(ledger, window), probe)
    return next((each for each in advice if each.knob == "double_buffer"), None)


def test_double_buffering_hides_acting_behind_waiting_simulators():
    advice = double_buffer_advice(act_s=4e-3, wait_s=10e-3)
    assert advice.gain == pytest.approx((4 + 10 + 1) / (10 + 1)) and not advice.learning and not advice.probed
    assert advice.config.loop == Loop(num_workers=4, double_buffer=True) and "num_workers=4" in advice.why
    # Acting on a half is assumed to take as long as on all: 24 ms are more than 12 ms of acting and 10 ms of waiting.
    assert double_buffer_advice(act_s=12e-3, wait_s=10e-3) is None
    automatic = double_buffer_advice(act_s=4e-3, wait_s=10e-3, workers=-1)
    assert automatic.config.loop == Loop(num_workers=-1, double_buffer=True)


def test_double_buffering_is_not_advised_if_it_cannot_help():
    assert double_buffer_advice(act_s=4e-3, wait_s=6e-3, cpu_share=1.4) is None  # the cores have no time for both
    assert double_buffer_advice(act_s=0.1e-3, wait_s=10e-3) is None
    assert double_buffer_advice(act_s=4e-3, wait_s=10e-3, overlappable=False) is None


def test_measured_double_buffering_has_its_measured_rate():
    unchanged = simulated(UPDATE_S / 4, act_s=4e-3, env_wait=STEPS * 10e-3)

    def probe(config: Config) -> Measurement:
        return simulated(UPDATE_S / 4, act_s=1e-3, env_wait=STEPS * 8e-3) if config.loop.double_buffer else unchanged

    advice = double_buffer_advice(act_s=4e-3, wait_s=10e-3, probe=probe)
    assert advice.probed and advice.gain == pytest.approx((4 + 10 + 1) / (1 + 8 + 1))


def test_knobs_without_predicted_gain_are_in_one_note():
    measured = simulated(UPDATE_S / 4, env_wait=STEPS * 10e-3)
    worker_facts = {"overlappable": True, "can_overlap": True, "worker_rows": [[0, 1], [2, 3]]}
    facts = replace(measured.facts[0], env_cpu_s=4 * 10e-3 * STEPS, **worker_facts)  # all cores are busy
    diagnosis = diagnose(measured.ledgers[0], facts)
    advice = advise(RECIPE, Config(), Measurement(measured.ledgers, [facts], True), diagnosis)
    (note,) = [note for note in diagnosis.notes if note.startswith("predicted to gain nothing: ")]
    assert not {"overlap", "double_buffer"} & {each.knob for each in advice}
    assert "overlap=True 0." in note and "double_buffer=True 0." in note


@pytest.mark.parametrize(
    ("rows", "overlappable", "on", "available"),
    [([[0, 1], [2, 3]], True, False, True), ([[0, 1, 2, 3]], True, False, False), ([[0, 1], [2, 3]], True, True, False),
     ([[0, 1, 2, 3]], False, False, False)],
)  # fmt: skip
def test_search_tries_double_buffering_with_two_workers(rows: list, overlappable: bool, on: bool, available: bool):
    facts = replace(simulated().facts[0], worker_rows=rows, overlappable=overlappable)
    axes = {axis.name: axis for axis in SearchSpace(RECIPE, Config(loop=Loop(double_buffer=on)), facts, "fixed").axes}
    assert ("double buffering" in axes) == available
    assert not available or axes["double buffering"].settings == ({"double_buffer": True},)


@dataclass(frozen=True)
class Delayed:
    """Settings of an algorithm that repeats its sequence of updates after `update_period` updates."""

    update_period: int = 1


@dataclass(frozen=True)
class GraphLoop:
    num_envs: int = NUM_ENVS
    graph_updates: int = 0


@dataclass(frozen=True)
class GraphConfig:
    run: RunConfig = field(default_factory=lambda: RunConfig(gpus="none", precision="bf16"))
    off_policy: GraphLoop = field(default_factory=GraphLoop)
    sac: Delayed = field(default_factory=Delayed)


GRAPH_RECIPE = Recipe(
    name="graphs",
    summary="",
    Config=GraphConfig,
    stages={"train": "simulated:train"},
    algorithms={"sac": Algorithm("simulated:SAC", Delayed(), "off_policy")},
)


@pytest.mark.parametrize(("period", "due", "k"), [(1, 3, 3), (2, 4, 4), (2, 5, 4), (3, 5, 3), (2, 1, 0), (6, 5, 0)])
def test_graphs_contain_complete_cycles_of_updates(period: int, due: int, k: int):
    """`GraphedUpdates` refuses other numbers, and a graph never has more updates than fall due per iteration."""
    config = GRAPH_RECIPE.Config(sac=Delayed(period))
    launch_s = 0.5 * due * STEPS * UPDATE_S
    measured = simulated(UPDATE_S, updates=due * STEPS, launch=launch_s)
    measured.ledgers[0].launch["update"] = launch_s
    diagnosis = diagnose(measured.ledgers[0], measured.facts[0])
    advised = [each.value for each in advise(GRAPH_RECIPE, config, measured, diagnosis) if each.knob == "graph_updates"]
    axes = {axis.name: axis for axis in SearchSpace(GRAPH_RECIPE, config, measured.facts[0], "fixed", gpus=1).axes}
    searched = [each["graph_updates"] for each in axes["launches"].settings] if "launches" in axes else []
    assert advised == searched == ([k] if k else [])


@pytest.mark.parametrize("failing", [False, True])
def test_graphs_are_measured_if_possible_and_predicted_otherwise(failing: bool) -> None:
    config = GRAPH_RECIPE.Config(sac=Delayed(1))
    measured = simulated(UPDATE_S, updates=STEPS, launch=0.5 * STEPS * UPDATE_S)
    measured.ledgers[0].launch["update"] = 0.5 * STEPS * UPDATE_S
    faster = simulated(0.1 * UPDATE_S)

    def probe(changed: GraphConfig) -> Measurement:
        if changed.off_policy.graph_updates and failing:
            raise RuntimeError("CUDA error")
        return faster if changed.off_policy.graph_updates else measured

    diagnosis = diagnose(measured.ledgers[0], measured.facts[0])
    advice = next(
        each for each in advise(GRAPH_RECIPE, config, measured, diagnosis, probe) if each.knob == "graph_updates"
    )
    assert advice.value == 1 and advice.probed != failing
    expected = measured.steps_per_s / (1 - 0.5 * UPDATE_S / (ACT_S + 1.5 * UPDATE_S)) if failing else faster.steps_per_s
    assert advice.steps_per_s == pytest.approx(expected, rel=1e-3)
    assert any("CUDA error" in note for note in diagnosis.notes) == failing


@pytest.mark.parametrize("error", [ConfigError("num_envs=16 is refused"), MemoryError(), RuntimeError("CUDA error")])
def test_a_failing_short_run_gives_a_note_and_the_other_advice_stays(error: Exception, monkeypatch) -> None:
    monkeypatch.setattr("powerband.tune.advise.update_knobs.this_cpu_emulates_bf16", lambda: False)
    measured, config = simulated(env=0.1), Config(run=RunConfig(gpus="none", precision="fp32"))
    measured.facts[0].threads_s.update({1: 1.0, 2: 0.5})
    diagnosis = diagnose(measured.ledgers[0], measured.facts[0])

    def failing(changed: Config) -> Measurement:
        raise error

    advise(RECIPE, config, measured, diagnosis, failing, with_compile=True)
    notes = [note for note in diagnosis.notes if "was not measured: " in note]
    assert any(note.startswith("num_envs=16 ") for note in notes) and len(notes) == len(set(notes)) >= 3


def test_an_interval_of_evaluations_in_seconds_is_advised() -> None:
    run = RunConfig(gpus="none", precision="bf16", eval_interval_s=5.0)
    measured = simulated(eval=0.2)
    advice = advise(RECIPE, Config(run=run), measured, diagnose(measured.ledgers[0], measured.facts[0]), None)
    assert any((each.knob, each.value) == ("eval_interval_s", 50.0) for each in advice)


def test_a_failing_advice_is_not_applied_and_a_note_states_why(monkeypatch) -> None:
    measured = simulated(eval=0.2)
    config = Config(run=RunConfig(gpus="none", precision="bf16", eval_interval_s=5.0))
    monkeypatch.setattr(profiling, "measure", lambda *_: measured)
    for result in (None, simulated(updates=0), MemoryError("no memory")):

        def short_run(*_: object, result: object = result, **__: object) -> object:
            if isinstance(result, Exception):
                raise result
            return result and replace(result, facts=[replace(result.facts[0], env_steps=0)])

        monkeypatch.setattr(profiling, "short_run", short_run)
        options = profiling.ProfileOptions(seconds=1.0, probe=False, apply=True)
        profile = profiling.profile(RECIPE, "train", config, options)
        assert profile.applied is None and any("was not applied: " in note for note in profile.diagnosis.notes)


def test_evaluations_that_the_window_did_not_reach_are_noted() -> None:
    config = Config(run=RunConfig(gpus="none", eval_interval_s=5.0))
    (note,) = profiling._unmeasured_cadences(RECIPE, config, simulated())
    assert note.startswith("eval_interval_s=5.0 was not reached in 0.5 s")
