"""Advice from short runs and from the simulators' own processor time: compiled updates, workers beyond the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from torch._inductor.exc import InvalidCxxCompiler

from powerband.core.config import RunConfig
from powerband.tune import profile as profiling
from powerband.tune.advice import Advice, advise
from powerband.tune.diagnose import Diagnosis, diagnose
from powerband.tune.facts import Facts
from powerband.tune.ledger import Ledger
from powerband.tune.measure import Measurement
from powerband.tune.space import Space

RECIPE = SimpleNamespace(STAGES={})
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


def seen(update_s: float = UPDATE_S, act_s: float = ACT_S, updates: int = STEPS, **others: float) -> Measurement:
    """A window of `STEPS` steps with an update each; `others` are accounts in seconds."""
    seconds = {"act": STEPS * act_s, "update": updates * update_s, **others}
    facts = Facts(iterations=STEPS, env_steps=STEPS * NUM_ENVS, grad_steps=updates, num_envs=NUM_ENVS, cores=CORES)
    return Measurement([Ledger(sum(seconds.values()), seconds)], [facts], True)


class Probe:
    """Short runs: `compiled` ones in turn, or what they raise; `plain` for all else."""

    def __init__(self, compiled: Iterable[Measurement | Exception], plain: Measurement | None = None) -> None:
        self.compiled, self.plain, self.runs = list(compiled), plain or seen(), 0

    def __call__(self, config: Config) -> Measurement | None:
        if not config.loop.compile:
            return self.plain
        self.runs += 1
        found = self.compiled.pop(0) if len(self.compiled) > 1 else self.compiled[0]
        if isinstance(found, Exception):
            raise found
        return found


def compile_advice(
    probe: Callable | None, measured: Measurement | None = None, config: Config | None = None, at_length: bool = True
) -> tuple[Advice | None, Diagnosis]:
    measured = measured or seen()
    found = diagnose(measured.ledgers[0], measured.facts[0])
    advice = advise(RECIPE, config or Config(), measured, found, probe, compiling=at_length)
    return next((each for each in advice if each.knob == "compile"), None), found


def test_compiled_updates_are_predicted_from_a_run_after_the_one_that_compiles():
    probe = Probe([seen(10 * UPDATE_S), seen(0.5 * UPDATE_S)])  # the first one's window has compiling in it
    advice, found = compile_advice(probe)
    assert probe.runs == 2 and advice.probed and not advice.learning and advice.config.loop.compile
    assert advice.steps_per_s == pytest.approx(seen(0.5 * UPDATE_S).steps_per_s) and "0.50x as long" in advice.why
    assert not any("compile" in remark for remark in found.remarks)


def test_a_run_whose_time_went_into_compiling_the_actions_is_made_again():
    probe = Probe([seen(updates=0), seen(10 * UPDATE_S), seen(0.5 * UPDATE_S)])
    advice, _ = compile_advice(probe)
    assert probe.runs == 3 and advice.steps_per_s == pytest.approx(seen(0.5 * UPDATE_S).steps_per_s)
    probe = Probe([seen(updates=0)])
    advice, found = compile_advice(probe)
    assert advice is None and probe.runs == 2
    assert any("compile=True was not measured" in remark for remark in found.remarks)


@pytest.mark.parametrize("factor", [0.99, 1.0, 1.1, 2.0])
def test_compiling_that_gains_nothing_is_listed_with_its_figure_and_never_applied(factor: float):
    advice, _ = compile_advice(Probe([seen(factor * UPDATE_S)]))
    assert advice.gain <= 1.0 and advice.config is None and f"{factor:.2f}x as long" in advice.why
    assert advice.steps_per_s == pytest.approx(min(seen().steps_per_s, seen(factor * UPDATE_S).steps_per_s))


@pytest.mark.parametrize(("whole", "gain"), [(0.9, 1.11), (1.0, 1.0), (1.25, 0.8)])
def test_a_small_gain_of_compiling_is_measured_beside_the_run_as_it_stands(whole: float, gain: float):
    small = seen(0.88 * UPDATE_S)  # 1.11x by the updates
    beside = seen(whole * UPDATE_S, whole * ACT_S)
    advice, _ = compile_advice(Probe([small, small, beside]))
    assert advice.gain == pytest.approx(gain, abs=0.01) and (advice.config is not None) == (gain > 1)


def test_without_a_compiler_one_remark_says_so():
    advice, found = compile_advice(Probe([InvalidCxxCompiler()]))
    (remark,) = [remark for remark in found.remarks if "compile" in remark]
    assert advice is None and "No working C++ compiler" in remark and "\n" not in remark and len(remark) < 200


@pytest.mark.parametrize(
    ("measured", "config", "at_length"),
    [
        (seen(), Config(), False),
        (seen(), Config(loop=Loop(compile=True)), True),
        (seen(act_s=3 * UPDATE_S), Config(), True),
    ],
)
def test_nothing_is_compiled_in_a_short_profile_nor_where_it_is_compiled_or_updates_are_few(
    measured: Measurement, config: Config, at_length: bool
):
    probe = Probe([seen(0.5 * UPDATE_S)])
    assert compile_advice(probe, measured, config, at_length)[0] is None
    assert not probe.runs or config.loop.compile


@pytest.mark.parametrize(
    ("device", "seconds", "expected"), [("cpu", 20, 0), ("cpu", 30, 1), ("cuda", 9, 0), ("cuda", 10, 1)]
)
def test_on_processors_only_a_long_profile_compiles(device: str, seconds: float, expected: int, monkeypatch):
    asked: list[dict] = []
    monkeypatch.setattr(profiling, "device_names", lambda settings: [device])
    monkeypatch.setattr(profiling, "measure", lambda *given: seen())
    monkeypatch.setattr(profiling, "advise", lambda *given, **long: asked.append(long) or [])
    profiling.profile(RECIPE, "train", Config(), profiling.Options(seconds))
    assert asked == [{"with_ranks": seconds >= 10, "compiling": bool(expected)}]


@pytest.mark.parametrize("slower", [0.5, 2.0])
def test_what_others_do_on_the_machine_in_the_meantime_is_not_taken_for_compiling(slower: float):
    probe = Probe([seen(0.5 * slower * UPDATE_S)], plain=seen(slower * UPDATE_S))
    advice, _ = compile_advice(probe)
    assert "0.50x as long" in advice.why
    assert advice.steps_per_s == pytest.approx(seen(0.5 * UPDATE_S).steps_per_s)


def workers_advised(cpu_share: float, now: int, cores: int = CORES) -> dict[int, Advice]:
    """Advice for workers of simulators that compute for `cpu_share` of their 10 ms a step and wait for the rest."""
    step_s, rows = 10e-3, [list(range(w * NUM_ENVS // now, (w + 1) * NUM_ENVS // now)) for w in range(now)]
    measured = seen(UPDATE_S / 4, env_wait=STEPS * step_s * NUM_ENVS / now)
    facts = replace(
        measured.facts[0],
        cores=cores,
        env_step_s=[step_s] * NUM_ENVS,
        worker_rows=rows,
        env_cpu_s=cpu_share * step_s * STEPS * NUM_ENVS,
        overlappable=True,
    )
    config = Config(loop=Loop(num_workers=now))
    found = advise(RECIPE, config, Measurement(measured.ledgers, [facts], True), diagnose(measured.ledgers[0], facts))
    return {each.value: each for each in found if each.knob == "num_workers"}


def test_simulators_that_wait_get_more_workers_than_cores_and_those_that_compute_do_not():
    sleeping = workers_advised(0.05, now=2)
    assert sleeping[4].gain == pytest.approx((2 + 20) / (2 + 10), rel=0.01)  # 20 ms of waiting become 10
    assert 1.03 < workers_advised(0.5, now=2)[4].gain < sleeping[4].gain
    for computing in (0.85, 0.9, 1.0):  # 0.85 is what llvmpipe showed
        assert not workers_advised(computing, now=2)
        assert set(workers_advised(computing, now=1)) == {2}, "more do no better than as many as cores"
        assert set(workers_advised(computing, now=2, cores=4)) == {4}


def turns_advised(
    act_s: float, wait_s: float, cpu_share: float = 0.0, probe: Callable | None = None, workers: int = 2, **facts: bool
) -> Advice | None:
    """Advice to step by turns, for simulators that compute for `cpu_share` of what they take."""
    measured = seen(UPDATE_S / 4, act_s=act_s, env_wait=STEPS * wait_s)
    known = {"overlappable": True, "worker_rows": [[0, 1], [2, 3]], **facts}
    spent = replace(measured.facts[0], env_cpu_s=2 * cpu_share * wait_s * STEPS, **known)
    ledger = replace(measured.ledgers[0], cpu_s=STEPS * (act_s + UPDATE_S / 4))
    config, probed = Config(loop=Loop(num_workers=workers)), Measurement([ledger], [spent], True)
    found = advise(RECIPE, config, probed, diagnose(ledger, spent), probe)
    return next((each for each in found if each.knob == "double_buffer"), None)


def test_choosing_actions_is_hidden_behind_simulators_that_wait():
    advice = turns_advised(act_s=4e-3, wait_s=10e-3)
    assert advice.gain == pytest.approx((4 + 10 + 1) / (10 + 1)) and not advice.learning and not advice.probed
    assert advice.config.loop == Loop(num_workers=4, double_buffer=True) and "num_workers=4" in advice.why
    # Nobody knows what less than all would take to choose for: 24 ms of acting are more than 12 and 10 of waiting.
    assert turns_advised(act_s=12e-3, wait_s=10e-3) is None
    assert turns_advised(act_s=4e-3, wait_s=10e-3, workers=-1).config.loop == Loop(num_workers=-1, double_buffer=True)


def test_turns_are_not_advised_where_they_cannot_help():
    assert turns_advised(act_s=4e-3, wait_s=6e-3, cpu_share=1.4) is None  # the cores have no time for both
    assert turns_advised(act_s=0.1e-3, wait_s=10e-3) is None
    assert turns_advised(act_s=4e-3, wait_s=10e-3, overlappable=False) is None


def test_turns_that_were_run_have_the_rate_they_had():
    whole = seen(UPDATE_S / 4, act_s=4e-3, env_wait=STEPS * 10e-3)

    def probe(config: Config) -> Measurement:
        return seen(UPDATE_S / 4, act_s=1e-3, env_wait=STEPS * 8e-3) if config.loop.double_buffer else whole

    advice = turns_advised(act_s=4e-3, wait_s=10e-3, probe=probe)
    assert advice.probed and advice.gain == pytest.approx((4 + 10 + 1) / (1 + 8 + 1))


def test_what_was_predicted_to_gain_nothing_is_said_in_one_remark():
    measured = seen(UPDATE_S / 4, env_wait=STEPS * 10e-3)
    known = {"overlappable": True, "can_overlap": True, "worker_rows": [[0, 1], [2, 3]]}
    facts = replace(measured.facts[0], env_cpu_s=4 * 10e-3 * STEPS, **known)  # the cores have no more to give
    found = diagnose(measured.ledgers[0], facts)
    advice = advise(RECIPE, Config(), Measurement(measured.ledgers, [facts], True), found)
    (remark,) = [remark for remark in found.remarks if remark.startswith("predicted to gain nothing: ")]
    assert not {"overlap", "double_buffer"} & {each.knob for each in advice}
    assert "overlap=True 0." in remark and "double_buffer=True 0." in remark


@pytest.mark.parametrize(
    ("rows", "overlappable", "on", "offered"),
    [([[0, 1], [2, 3]], True, False, True), ([[0, 1, 2, 3]], True, False, False), ([[0, 1], [2, 3]], True, True, False),
     ([[0, 1, 2, 3]], False, False, False)],
)  # fmt: skip
def test_a_search_offers_turns_where_there_are_two_workers(rows: list, overlappable: bool, on: bool, offered: bool):
    facts = replace(seen().facts[0], worker_rows=rows, overlappable=overlappable)
    axes = {axis.name: axis for axis in Space(RECIPE, Config(loop=Loop(double_buffer=on)), facts, "fixed").axes}
    assert ("double buffering" in axes) == offered
    assert not offered or axes["double buffering"].settings == ({"double_buffer": True},)
