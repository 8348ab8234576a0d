"""The search for the time to a score on simulated training: what it chooses, what it refuses, and when it ends."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.storages import InMemoryStorage

from powerband.cli.catalogue import configure
from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.tune.score import preset, search, study, verification
from powerband.tune.score.curve import CurvePoint
from powerband.tune.score.layout import layout_of_study
from powerband.tune.score.options import ScoreOptions
from powerband.tune.score.search import ScoreResult, search_and_verify
from powerband.tune.score.setting_space import SettingSpace
from powerband.tune.score.study import SharedStudy
from powerband.tune.score.trials import own_cores, scheduler, trial_runner
from powerband.tune.score.trials.own_cores import check_parallel, core_groups
from powerband.tune.score.trials.rungs import Goal, SettingResult, TrialRecord, promotable
from powerband.tune.score.trials.scheduler import FRESH_SEED, TrialScheduler
from powerband.tune.score.trials.trial import TrialRun
from powerband.tune.score.trials.trial_runner import Job
from tune.score.simulated_training import START_S, SimulatedTraining

ARGUMENTS = ["env_id=CartPole-v1", "algo=ppo"]


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[SharedStudy] = []
    storage = InMemoryStorage()

    def build(world: SimulatedTraining, machine: str = "one", rate: float = 1000.0, **options: Any) -> TrialScheduler:
        for module in (scheduler, search, verification):
            monkeypatch.setattr(module, "time", world)
        for module in (trial_runner, search):
            monkeypatch.setattr(module, "run_trial", world.run_trial)
        recipe, stage, resolved = configure("gym", ARGUMENTS)
        space = SettingSpace(recipe, stage, {"ppo": resolved.config}, [], options.pop("layout", None))
        if options.pop("continues", False):
            monkeypatch.setattr(SharedStudy, "_storage", lambda *_: storage)
        elif not options.pop("on_disk", "storage" in options):
            monkeypatch.setattr(SharedStudy, "_storage", lambda *_: InMemoryStorage())
        settings = ScoreOptions(**{"target": 80.0, "seconds": 600.0, **options})
        for each in opened:
            each.close()
        opened.append(SharedStudy(settings.storage, tmp_path, "study", rate, machine, seed=1))
        folder, began = tmp_path / machine, world.monotonic()
        return TrialScheduler(space, ARGUMENTS, settings, opened[-1], folder, 0, lambda *_: None, began)

    return build


@pytest.fixture
def found(trials):
    def run(*arguments: Any, **options: Any) -> ScoreResult:
        return search_and_verify(trials(*arguments, **options))

    return run


def test_the_choice_is_faster_and_its_interval_is_below_one(found, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    world = SimulatedTraining()
    result = found(world, seconds=1000.0)
    assert result.verification is not None and result.verification.ratio is not None
    assert result.verification.ratio.high < 1 and result.verification.ratio.value < 0.75
    assert result.seconds <= 1001
    chosen = result.space.settings(result.chosen)
    assert 6e-4 < chosen["ppo.lr"] < 2.4e-3
    best = next(each for each in result.settings if each.params == result.chosen)
    assert len(best.records) >= 2  # no setting is verified on one seed of the search
    seeds = {each.seed for each in result.records}
    assert not seeds & set(result.verification.seeds) and len(result.verification.seeds) >= 3
    path = preset.write_preset(result, ARGUMENTS)
    header = json.loads(path.with_suffix(".tuning.json").read_text())
    assert header["task"] == "CartPole-v1" and header["chosen"]["ppo.lr"] == chosen["ppo.lr"]
    assert header["pays_off_after"] == -(-header["seconds"] // header["verification"]["saved_s"])
    assert preset.table(result).startswith("Training takes ")
    loaded = configure("gym", [*ARGUMENTS, "setup=tuned-score"])[2].config
    assert loaded.ppo.lr == chosen["ppo.lr"] and loaded.algo == "ppo"


def test_a_fast_present_setting_is_timed_again_with_closer_evaluations(found) -> None:
    """A run of 1600 s evaluates every 5 s at first, and the present settings reach the score in about 3 s."""
    world = SimulatedTraining(scale=0.7, noise=0.0, interval=True)
    result = found(world, seconds=1600.0)
    rough, exact = [each for each in result.records if each.params == result.present and each.seed == 100][:2]
    assert rough.curve[0].seconds == pytest.approx(5.0) and rough.curve[0].score > 80
    assert exact.curve[0].seconds == pytest.approx(0.25) and exact.curve[0].score < 40
    assert 2 < result.goal.budget < 4 and result.goal.start < 40
    shown = next(each for each in result.settings if each.params == result.present)
    assert 2 < shown.times[0] < 4


def test_the_second_timing_of_the_present_settings_may_take_longer_than_the_first(found) -> None:
    """Here both evaluate equally often. The last of the three evaluations comes after the time to the score."""
    result = found(SimulatedTraining(scale=8.0, noise=0.02), seconds=3000.0)
    first, second = [each for each in result.records if each.params == result.present and each.seed == 100][:2]
    assert first.outcome == second.outcome == "reached"
    assert result.verification is not None and result.verification.budget == 2 * result.goal.budget


def test_a_second_timing_that_fails_ends_the_search(found) -> None:
    with pytest.raises(ConfigError, match="present settings cannot be trained: a loss is not finite"):
        found(SimulatedTraining(scale=0.7, interval=True, fails="run.eval_interval_s=0.25"), seconds=1600.0)


def test_no_run_of_a_search_has_a_seed_of_an_evaluation(found) -> None:
    """A run with such a seed is refused, and would count as one that does not reach the score."""
    world = SimulatedTraining()
    result = found(world, seconds=1000.0)
    seeds = {
        int(argument.partition("=")[2])
        for each in world.commands
        for argument in each
        if argument.startswith("run.seed=")
    }
    assert result.verification is not None and set(result.verification.seeds) <= seeds
    for seed in seeds:
        result.space.recipe.refuse_held_out(seed)
    assert {10_001, 10_002, 10_003} <= seeds and 10_000 not in seeds


def test_promoted_trials_continue_from_their_checkpoint(found) -> None:
    world = SimulatedTraining()
    result = found(world)
    resumed = [command for command in world.commands if any(argument.startswith("run.resume=") for argument in command)]
    assert resumed and all(command[4:] == ["--trust"] for command in resumed)
    assert len({each.folder for each in result.records}) < len(result.records)


def test_settings_that_are_not_better_leave_an_empty_preset(found, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    preset.write_preset(found(SimulatedTraining()), ARGUMENTS)
    world = SimulatedTraining(optimum=3e-4, noise=0.3)
    result = found(world)
    path = preset.write_preset(result, ARGUMENTS)
    if result.chosen is None:
        assert "present" in preset.verdict(result)
        assert configure("gym", [*ARGUMENTS, "setup=tuned-score"])[2].config.ppo.lr == 3e-4
        assert json.loads(path.with_suffix(".tuning.json").read_text())["chosen"] is None
    else:
        chosen = [f"{name}={value}" for name, value in result.space.settings(result.chosen).items()]
        assert world.true_scale(chosen) <= world.true_scale([])


class LuckyRate(SimulatedTraining):
    """Twice the learning rate is faster on the seeds of the search alone; another number of environments always is."""

    def true_scale(self, command: Sequence[str]) -> float:
        options = dict(word.split("=", 1) for word in command if "=" in word)
        scale = 20.0 if options.get("on_policy.num_envs", "8") == "8" else 12.0
        if options.get("ppo.lr") == "0.0006":
            scale *= 3 if int(options["run.seed"]) >= FRESH_SEED else 0.3
        return scale


def test_a_candidate_that_new_seeds_show_to_be_slower_gets_three_of_them_and_the_search_continues(found) -> None:
    world = LuckyRate(noise=0.02, interval=True)
    result = found(world, seconds=3000.0)
    assert result.refused and all(len(check.seeds) == 3 for _, check in result.refused)
    assert all(result.space.settings(params)["ppo.lr"] == 6e-4 for params, _ in result.refused)
    assert len({json.dumps(dict(params), sort_keys=True) for params, _ in result.refused}) == len(result.refused)
    checks = [check for _, check in result.refused]
    if result.verification is not checks[-1]:
        checks.append(result.verification)
    seeds = [seed for check in checks for seed in check.seeds]
    assert len(set(seeds)) == len(seeds)
    assert result.chosen is not None and result.space.settings(result.chosen).get("ppo.lr") != 6e-4
    assert result.seconds <= 3000 + 2 * START_S
    assert "refused after 3 fresh seeds: " in preset.table(result)
    (first, *_) = preset.to_dict(result, {})["refused"]
    assert first["ratio"]["low"] > 1 and "ppo.lr" in first["setting"]


def test_a_continued_search_verifies_no_refused_setting_again_and_uses_new_seeds(found) -> None:
    world = LuckyRate(noise=0.02, interval=True)
    first = found(world, seconds=1500.0, on_disk=True)
    second = found(world, seconds=1500.0, on_disk=True)
    assert first.refused and (second.refused or second.verification is not None)
    keys = [json.dumps(dict(params), sort_keys=True) for result in (first, second) for params, _ in result.refused]
    assert len(set(keys)) == len(keys)
    checks = [check for _, check in (*first.refused, *second.refused)]
    if second.verification is not None and second.verification not in checks:
        checks.append(second.verification)
    seeds = [seed for check in checks for seed in check.seeds]
    assert len(set(seeds)) == len(seeds)


def test_a_target_that_is_never_reached_ends_at_the_budget_and_names_the_best(found) -> None:
    world = SimulatedTraining(best=60.0)
    result = found(world, seconds=400.0)
    assert result.chosen is None and result.verification is None
    assert 380 <= result.seconds <= 405
    text = preset.verdict(result)
    assert text.startswith("No trial reached return 80 in 3 successive evaluations; the best evaluation gave ")
    assert result.best_score is not None and 40 < result.best_score < 80
    assert text.endswith("or raise seconds.")
    spent = replace(result, records=[replace(each, outcome="ended") for each in result.records])
    assert "raise env_steps" in preset.verdict(spent)


def test_a_trial_that_fails_is_recorded_and_does_not_end_the_search(found) -> None:
    result = found(SimulatedTraining(fails="on_policy.num_envs=16"))
    failed = [each for each in result.records if each.outcome == "failed"]
    assert failed and failed[0].message == "a loss is not finite" and result.chosen is not None
    assert "failed: on_policy.num_envs=16" in preset.table(result)


def test_a_search_continues_in_its_folder(found) -> None:
    world = SimulatedTraining()
    first = found(world, seconds=120.0, on_disk=True)
    second = found(world, seconds=120.0, on_disk=True)
    assert len(second.records) > len(first.records)
    assert [each.params for each in second.records[: len(first.records)]] == [each.params for each in first.records]


def test_machines_of_different_speed_share_a_study(found, tmp_path: Path, monkeypatch) -> None:
    """The second machine is half as fast: the same curves take twice its seconds."""
    monkeypatch.setattr(study.os, "getpid", lambda: 1)  # which is part of the sampler's seed
    shared = str(tmp_path / "journal.log")
    first = found(SimulatedTraining(), seconds=600.0, storage=shared)
    slow = SimulatedTraining(scale=20.0)
    second = found(slow, machine="two", rate=500.0, seconds=1200.0, storage=shared)
    assert second.goal.budget == pytest.approx(2 * first.goal.budget)
    borrowed = [each for each in second.records if each.machine == "one"]
    assert [each.seconds for each in borrowed] == pytest.approx([2 * each.seconds for each in first.records])
    assert all(each.folder.startswith(str(tmp_path / each.machine)) for each in second.records)
    assert not any(str(tmp_path / "one") in argument for command in slow.commands for argument in command)
    assert second.verification is not None and second.verification.is_faster


def test_the_faster_layout_is_tried_right_after_the_present_settings(found) -> None:
    world = SimulatedTraining()
    result = found(world, layout={"run.threads": 1, "num_workers": 0})
    assert not any("run.threads" in argument for argument in world.commands[0])
    assert {"run.threads=1", "num_workers=0"} <= set(world.commands[1])
    assert result.records[0].params["layout"] == "present" and result.records[1].params["layout"] == "faster"


def test_parallel_trials_need_their_own_cores_and_no_gpu(monkeypatch) -> None:
    monkeypatch.setattr(own_cores, "cores", lambda: 4)
    check_parallel(4, RunConfig(gpus="none", threads=1))
    check_parallel(1, RunConfig(gpus="none", threads=0))
    for parallel, threads in ((5, 1), (2, 0), (3, 2)):
        with pytest.raises(ConfigError, match=f"parallel={parallel} is above"):
            check_parallel(parallel, RunConfig(gpus="none", threads=threads))
    with monkeypatch.context() as gpu:
        gpu.setattr(own_cores, "device_names", lambda _: ["cuda:0"])
        check_parallel(1, RunConfig(threads=1))
        with pytest.raises(ConfigError, match="parallel=2 does not work on a GPU: all trials would share cuda:0"):
            check_parallel(2, RunConfig(threads=1))
    monkeypatch.setattr(own_cores.os, "sched_getaffinity", lambda _: {0, 1, 2, 5})
    assert core_groups(2) == [{0, 1}, {2, 5}]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_parallel_trials_are_different_and_pinned(found, monkeypatch) -> None:
    before = os.sched_getaffinity(0)
    world, used = SimulatedTraining(), []
    train = world.run_trial
    monkeypatch.setattr(
        world, "run_trial", lambda *arguments: (used.append(frozenset(os.sched_getaffinity(0))), train(*arguments))[1]
    )
    result = found(world, parallel=2, seconds=400.0)
    folders = {(each.setting_key, each.seed, each.folder) for each in result.records}
    assert len({(key, seed) for key, seed, _ in folders}) == len(folders) > 2, "no trial is started twice"
    assert len(set(used)) == 2 and not frozenset.intersection(*set(used))
    assert os.sched_getaffinity(0) == before


def test_a_search_in_which_every_trial_fails_ends(found) -> None:
    with pytest.raises(ConfigError, match="present settings cannot be trained: a loss is not finite"):
        found(SimulatedTraining(fails="run.seed"))
    world = SimulatedTraining()
    train, starts = world.run_trial, []

    def only_present(*arguments: Any) -> Any:
        starts.append(arguments)
        world.fails = "run.seed" if len(starts) > 2 else ""  # the present settings are timed twice
        return train(*arguments)

    world.run_trial = only_present  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="The last 20 trials failed"):
        found(world, seconds=5000.0, machine="two")


def test_a_trial_whose_newest_start_failed_is_not_promoted_again() -> None:
    curves = [[CurvePoint(10, 1.0, score)] for score in (9.0, 5.0, 1.0)]
    records = [TrialRecord({"a": index}, 0, 0, "paused", curve, machine="m") for index, curve in enumerate(curves)]
    goal = Goal(10.0, 0.0, 90.0)
    assert promotable(records, goal, lambda _: True) == records[0]
    assert promotable(records, goal, lambda _: False) is None
    failed = TrialRecord({"a": 0}, 0, 1, "failed", [], machine="m")
    assert promotable([*records, failed], goal, lambda _: True) is None


def test_a_promoted_trial_that_the_end_of_the_budget_stops_stays_paused_on_its_rung(trials) -> None:
    world = SimulatedTraining(best=60.0)
    search = trials(world)
    goal, trial = search.goal(), None
    search.study.enqueue(search.space)
    trial = search.study.ask(search.space)
    first = search._run(Job(dict(trial.params), 100, 0, trial), goal)
    search.deadline = world.now + START_S + 2
    again = search._run(Job(first.params, 100, 1, paused=first), goal)
    assert (again.outcome, again.rung) == ("paused", 0) and again.seconds > first.seconds
    assert Path(again.folder, "checkpoints").is_dir()


def test_a_stopped_trial_without_an_evaluation_has_no_value(trials, monkeypatch) -> None:
    search = trials(SimulatedTraining())
    monkeypatch.setattr(trial_runner, "run_trial", lambda *_: TrialRun("stopped", [], 0, 0.0, 1.0))
    search.study.enqueue(search.space)
    search._run(Job(search.present, 100, 0, search.study.ask(search.space)), search.goal())
    assert search.study._study.get_trials()[0].state.name == "FAIL"


def test_an_error_in_one_of_several_parallel_trials_ends_the_others(found, monkeypatch) -> None:
    monkeypatch.setattr(scheduler, "core_groups", lambda parallel: [set()] * parallel)
    world, starts, stopped = SimulatedTraining(), [], []
    train = world.run_trial

    def run_trial(*arguments: Any) -> TrialRun:
        starts.append(arguments)
        if len(starts) == 2:
            raise RuntimeError("a bug")
        if len(starts) == 1:
            return train(*arguments)
        stopped.append(arguments[-1].wait(10))
        return TrialRun("stopped", [], 0, 0.0, 0.0)

    monkeypatch.setattr(world, "run_trial", run_trial)
    with pytest.raises(RuntimeError, match="a bug"):
        found(world, parallel=2)
    assert all(stopped) and len(stopped) <= 1


def test_an_interrupted_first_trial_is_trained_by_the_next_search(found) -> None:
    world = SimulatedTraining()
    train = world.run_trial

    def interrupted(*_: Any) -> TrialRun:
        raise KeyboardInterrupt

    world.run_trial = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        found(world, seconds=120.0, continues=True)
    world.run_trial = train  # type: ignore[method-assign]
    result = found(world, seconds=120.0, continues=True)
    assert not any("lr=" in argument or "num_envs=" in argument for argument in world.commands[0])
    assert any(each.params == result.present and each.is_done for each in result.records)


def test_a_continued_study_may_have_another_layout(found) -> None:
    world = SimulatedTraining()
    found(world, seconds=120.0, continues=True)
    result = found(world, seconds=120.0, continues=True, layout={"run.threads": 1})
    assert any(each.params == result.present and each.is_done for each in result.records)


def test_a_study_keeps_the_layout_and_the_rate_of_a_machine(tmp_path: Path) -> None:
    shared = str(tmp_path / "journal.log")
    first = SharedStudy(shared, tmp_path, "a", 100.0, "one")
    assert layout_of_study(first, lambda: {"run.threads": 2}) == {"run.threads": 2}
    again = SharedStudy(shared, tmp_path / "again", "a", 90.0, "one")
    other = SharedStudy(shared, tmp_path, "a", 50.0, "two")
    assert (again.rate, other.rate) == (100.0, 50.0)
    assert layout_of_study(again, dict) == {"run.threads": 2} and layout_of_study(other, dict) == {}


def test_one_search_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    first = SharedStudy("", tmp_path, "a", 1.0, "one")
    with pytest.raises(ConfigError, match="Another search of this machine runs in the study folder"):
        SharedStudy("", tmp_path, "a", 1.0, "one")
    first.close()
    SharedStudy("", tmp_path, "a", 1.0, "one").close()


def test_one_search_of_a_machine_works_in_a_folder_also_with_a_shared_storage(tmp_path: Path) -> None:
    """Two searches would continue the same paused trials, and delete each other's checkpoints."""
    storage = str(tmp_path / "journal.log")
    first = SharedStudy(storage, tmp_path / "study", "a", 1.0, "one")
    with pytest.raises(ConfigError, match="Another search of this machine runs in the study folder"):
        SharedStudy(storage, tmp_path / "study", "a", 1.0, "one")
    SharedStudy(storage, tmp_path / "study", "a", 1.0, "two").close()
    SharedStudy(storage, tmp_path / "other", "a", 1.0, "one").close()
    first.close()
    SharedStudy(storage, tmp_path / "study", "a", 1.0, "one").close()


def test_a_search_continues_trials_of_its_own_folder_alone(trials, tmp_path: Path) -> None:
    search = trials(SimulatedTraining())
    record = TrialRecord({}, 0, 0, "paused", [], machine="one", folder=str(search.folder / "trials" / "0001"))
    assert search._is_own(record)
    assert not search._is_own(replace(record, folder=str(tmp_path / "elsewhere" / "trials" / "0001")))
    assert not search._is_own(replace(record, machine="two"))


def test_seconds_of_a_continued_search_count_unless_the_score_was_reached(trials) -> None:
    search = trials(SimulatedTraining(best=60.0))
    search.run()
    assert "trial_steps" not in search.study.attributes() and search.notice() == ""
    search = trials(SimulatedTraining(), trial_seconds=33.0)
    assert search.goal().budget == 33.0
    search.study.set(trial_steps=search.study.shared_steps(20.0))
    assert search.goal().budget == 20.0 and "trial_seconds=33: no effect" in search.notice()


@pytest.mark.parametrize(("times", "budget"), [([30.0, None], 100.0), ([None], 50.0)])
def test_slow_seeds_of_the_present_settings_count_fully_in_the_verification(trials, monkeypatch, times, budget) -> None:
    budgets: list[float] = []
    monkeypatch.setattr(search, "verified", lambda *arguments: budgets.append(arguments[3]))
    present = SettingResult({}, [], times, 1.0, 1.0)
    search.compare(trials(SimulatedTraining()), present, present, Goal(80.0, 0.0, 50.0))
    assert budgets == [budget]


def test_the_command_that_uses_a_preset_has_the_stage_and_quotes(trials) -> None:
    space = trials(SimulatedTraining()).space
    result = SimpleNamespace(space=space)
    assert preset.use(result, ["env_kwargs={'a': 1}"]) == "gym 'env_kwargs={'\"'\"'a'\"'\"': 1}' setup=tuned-score"
    space.stage = "other"
    assert preset.use(result, []).startswith("gym other setup=")


def test_scores_that_are_not_finite_are_null_in_the_json(found) -> None:
    result = found(SimulatedTraining(best=60.0), seconds=60.0)
    worst = [replace(each, best_score=-math.inf, value=math.inf) for each in result.settings]
    written = preset.to_dict(replace(result, best_score=-math.inf, settings=worst), {})
    assert json.loads(json.dumps(written, allow_nan=False))["best_score"] is None
    assert {each["seconds"] for each in written["settings"]} == {None}
