"""The search on simulated loops with known rates: it finds fast settings within its rule, budget and memory limit."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.machine.out_of_memory import OutOfMemory
from powerband.tune.measure.in_process import Measurement
from powerband.tune.search import search as searching
from powerband.tune.search.search import Search, SearchOptions, TuningResult
from powerband.tune.search.space import SearchSpace
from tune.search.simulated_machine import GIB, RECIPE, Config, Loop, World


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch):
    def run(world: World, config: Config | None = None, **options: Any) -> TuningResult:
        monkeypatch.setattr(searching, "short_run", world.measure)
        monkeypatch.setattr(searching.memory, "free", lambda device: 256 * GIB)
        return Search(RECIPE, "train", config or Config(), SearchOptions(**options), lambda *arguments: None).run()

    return run


def best_of(world: World, space: SearchSpace) -> float:
    """Returns the highest true rate of all settings."""
    rates = []
    for parts in itertools.product(*([{}, *axis.settings] for axis in space.axes)):
        setting = space.complete([part for part in parts if part])
        if setting is not None and (config := space.config_with(setting)):
            rates.append(world.rate(config))
    return max(rates)


@pytest.fixture(autouse=True)
def bf16_in_hardware(monkeypatch) -> None:
    monkeypatch.setattr("powerband.tune.search.space.this_cpu_emulates_bf16", lambda: False)


def test_a_cpu_that_emulates_bf16_is_not_asked_to(tuned, monkeypatch) -> None:
    monkeypatch.setattr("powerband.tune.search.space.this_cpu_emulates_bf16", lambda: True)
    axes = {axis.name: axis.settings for axis in tuned(World()).space.axes}
    assert not axes.get("precision"), "emulation is up to hundreds of times slower, and a trial of it takes minutes"


WORLDS = {
    "update-bound": World(),
    "slow environments": World(env_s=20e-3),
    "dear collectives": World(comm_s=30e-3),
    "bf16 is slow here": World(half=1.7),
    "threads help": World(oversubscribed=-0.15),
}


@pytest.mark.parametrize(
    "rule", ["fixed", *(pytest.param(name, marks=pytest.mark.slow) for name in ("constant-reuse", "sqrt-lr"))]
)
@pytest.mark.parametrize("world", WORLDS)
def test_chosen_setting_is_close_to_the_best_of_all_settings(tuned, world: str, rule: str) -> None:
    result = tuned(WORLDS[world], learning=rule)
    chosen = WORLDS[world].rate(result.space.config_with(result.best.setting))
    assert chosen >= 0.9 * best_of(WORLDS[world], result.space)
    assert result.gain > 1.2


def test_overlap_is_not_combined_with_simulators_in_the_training_process(tuned) -> None:
    result = tuned(World(env_s=20e-3))
    overlapped = [each.setting for each in result.candidates if each.setting.get("overlap")]
    assert overlapped and all(each.get("num_workers", 4) > 0 for each in overlapped)
    assert result.space.complete([{"double_buffer": True}, {"num_workers": 1}]) is None


def test_most_settings_are_predicted_and_few_are_run(tuned) -> None:
    world = World()
    result = tuned(world, learning="constant-reuse")
    assert len(result.candidates) > 500
    assert len({repr(config) for config in world.runs}) <= 20
    errors = [each.predicted / world.rate(result.space.config_with(each.setting)) - 1 for each in result.candidates]
    assert sorted(map(abs, errors))[len(errors) // 2] < 0.15


def test_best_setting_with_another_number_of_ranks_is_verified(tuned, monkeypatch) -> None:
    world, now = World(comm_s=4e-3), [0.0]
    measured = world.measure
    monkeypatch.setattr(searching, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def dear(recipe: Any, stage: str, config: Config, *rest: Any, **words: Any) -> Measurement:
        now[0] += 9.0 if config.run.nproc > 1 else 2.0  # starting two ranks takes longer
        return measured(recipe, stage, config, *rest, **words)

    world.measure = dear
    result = tuned(world, learning="constant-reuse", seconds=60)
    assert len({each.setting.get("nproc", 1) for each in result.verified[1:]}) > 1


def test_present_setting_is_chosen_if_none_is_faster(tuned) -> None:
    run = RunConfig(gpus="none", threads=1, nproc=1, overlap=True)
    world = World(half=1.5, comm_s=1.0, oversubscribed=0.5, env_s=1e-5)
    result = tuned(world, Config(run=run))
    assert result.best is result.baseline and result.gain == 1.0


def test_fixed_rule_changes_only_knobs_that_leave_learning_unchanged(tuned) -> None:
    result = tuned(World(), learning="fixed")
    knobs = {knob for each in result.candidates for knob in each.setting}
    assert knobs <= {"nproc", "threads", "precision", "overlap", "num_workers"}
    assert not any(each.learning for each in result.candidates)


@pytest.mark.parametrize("rule", ["constant-reuse", "sqrt-lr"])
def test_rules_keep_the_sample_reuse_and_mark_settings_that_change_learning(tuned, rule: str) -> None:
    result = tuned(World(), learning=rule)
    changing = [each for each in result.candidates if each.learning]
    assert changing
    for each in result.candidates:
        config = result.space.config_with(each.setting)
        loop = config.off_policy
        reuse = loop.global_batch_size * loop.updates_per_interval / loop.update_interval
        assert reuse == 256 / 4
        growth = math.sqrt(loop.global_batch_size / 256) if rule == "sqrt-lr" else 1.0
        assert config.sac.actor_lr == pytest.approx(3e-4 * growth) == config.sac.critic_lr
        assert each.learning == (loop.num_envs != 16 or loop.global_batch_size != 256)


def test_sizes_that_do_not_divide_by_the_ranks_are_not_candidates(tuned) -> None:
    result = tuned(World(), Config(off_policy=Loop(num_envs=6)))
    assert {each.setting.get("nproc", 1) for each in result.candidates} == {1, 2}


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory."), OutOfMemory("this process ran out of memory")])
def test_settings_that_do_not_fit_into_memory_are_not_candidates(tuned, error: Exception) -> None:
    world = World(
        gib=(1.0, 0.5), memory_gib=20.0, too_large=error
    )  # 16 environments need 9 GiB, 32 need 17, 64 need 33
    result = tuned(world, learning="constant-reuse", memory_gib=20.0)
    assert max(each.setting.get("num_envs", 16) for each in result.candidates) == 36  # of 16, 20, ...
    assert any("does not fit into memory" in note for note in result.notes)
    limited = tuned(World(gib=(1.0, 0.05)), learning="constant-reuse", memory_gib=3.0)
    most = max(each.setting.get("num_envs", 16) for each in limited.candidates)
    assert most == 32  # 1 + 0.05 x 32 = 2.6 GiB; 64 would need 4.2


def test_spent_budget_is_noted_for_alternatives_that_were_not_probed(tuned, monkeypatch) -> None:
    world, clock = World(), itertools.count(0, 5)  # each reading of the clock is five seconds later
    monkeypatch.setattr(searching, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    result = tuned(world, seconds=30)
    assert any("not probed" in note for note in result.notes)
    assert len(result.baseline.rates) == 1 and len(result.verified) > 1  # the verification runs nevertheless


def test_first_run_that_compiled_is_repeated_outside_of_the_budget(tuned, monkeypatch) -> None:
    world, now = World(), [0.0]
    measured = world.measure
    monkeypatch.setattr(searching, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def compiling(recipe: Any, stage: str, config: Config, *rest: Any, **words: Any) -> Measurement:
        now[0] += 1.0 if world.runs else 60.0
        return measured(recipe, stage, config, *rest, **words)

    world.measure = compiling
    result = tuned(world, seconds=30)
    assert world.runs[0] == world.runs[1] and not result.notes
    assert result.seconds == len(world.runs) - 1


@pytest.mark.parametrize(
    ("options", "message"), [(dict(seconds=5), "seconds=5"), (dict(memory_gib=-1.0), "memory_gib=-1")]
)
def test_invalid_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SearchOptions(**options)


def test_unexpected_error_of_a_run_is_raised(tuned, monkeypatch) -> None:
    world = World()
    measured = world.measure

    def broken(recipe: Any, stage: str, config: Config, *rest: Any) -> Measurement:
        if config.run.precision == "bf16":
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        return measured(recipe, stage, config, *rest)

    world.measure = broken
    with pytest.raises(RuntimeError, match="mat1"):
        tuned(world)


def test_refused_setting_is_noted_and_the_search_continues(tuned) -> None:
    world = World()
    measured = world.measure

    def refusing(recipe: Any, stage: str, config: Config, *rest: Any) -> Measurement:
        if config.num_workers == 8:
            raise ConfigError("num_workers=8 does not fit")
        return measured(recipe, stage, config, *rest)

    world.measure = refusing
    result = tuned(world)
    assert any("num_workers=8: refused" in note for note in result.notes)
    assert all(each.setting.get("num_workers") != 8 for each in result.candidates)


def test_sizes_that_do_not_divide_by_the_gpus_are_refused_with_a_note(monkeypatch) -> None:
    config, notes = Config(run=RunConfig(gpus="auto"), off_policy=Loop(num_envs=6)), []
    space = SearchSpace(RECIPE, config, World().measure(RECIPE, "train", Config(), 1.0).facts[0], "fixed", gpus=4)
    assert [each["nproc"] for each in space.layout().settings] == [2]
    search = Search(RECIPE, "train", config, SearchOptions(), lambda *_: None)
    search.space, search.notes = space, notes
    assert search.measure({"nproc": 4}, 1.0) is None and notes[0].startswith("nproc=4: refused (")
