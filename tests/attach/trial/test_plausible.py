"""Plausible changes and their predictions, from figures of a profile."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from powerband.attach.findings import _advice
from powerband.attach.processes.records import Record
from powerband.attach.times.process_times import Line, ProcessTimes
from powerband.attach.trial import plausible, rehearsal
from powerband.attach.trial.observed import Loader, Observed, observed
from powerband.attach.trial.plausible import plausible_changes
from powerband.attach.trial.predict import async_gain, cadence_gain, persistent_gain, sync_gain, workers_gain
from powerband.tune.diagnose.evidence import Finding
from powerband.tune.measure.ledger import Ledger

LOADER = Loader("/work/train.py:9", 100, 0, 8.0, 0.0, 0, 2, False, False, False)
SITES = [
    {
        "what": "Optimizer",
        "name": "AdamW",
        "where": "/w.py:1",
        "value": None,
        "switches": {"foreach": None, "fused": None},
    }
]
QUIET = Observed(
    wall_s=10.0,
    seconds={"other": 10.0},
    thread_s=10.0,
    cpu_s=10.0,
    queue_s=0.0,
    updates=100,
    env_calls=0,
    num_envs=0,
    workers_env_s=0.0,
    workers_cpu_s=0.0,
    loaders=[],
    sites=[],
    lines=[],
    threads=2,
    cores=2,
    device="cpu",
)


def observation(**figures: Any) -> Observed:
    return dataclasses.replace(QUIET, **figures)


def names(found: Observed, numerics: bool = False) -> list[tuple[str, Any]]:
    return [(change.name, change.value) for change in plausible_changes(found, numerics)]


def test_a_script_that_waits_for_nothing_gets_no_change() -> None:
    assert names(QUIET) == [] and names(QUIET, True) == []


def test_workers_are_tried_only_for_loaders_that_are_waited_for() -> None:
    waiting = observation(seconds={"data_wait": 8.0, "other": 2.0}, thread_s=2.0, cpu_s=2.0, loaders=[LOADER])
    assert names(waiting) == [("num_workers", 4), ("num_workers", 2)]  # with four, the loop is the slowest part
    assert names(dataclasses.replace(waiting, loaders=[dataclasses.replace(LOADER, iterable=True)])) == []
    fast = dataclasses.replace(LOADER, wait_s=0.1)
    assert names(dataclasses.replace(waiting, loaders=[fast])) == []


def test_workers_that_compute_are_bounded_by_the_cores() -> None:
    computing = observation(seconds={"data_wait": 8.0}, loaders=[LOADER])
    assert workers_gain(computing, LOADER, 4) == pytest.approx(1.0, abs=0.02)  # ten processor seconds on two cores
    waiting = observation(seconds={"data_wait": 8.0}, thread_s=2.0, cpu_s=2.0, loaders=[LOADER])
    assert workers_gain(waiting, LOADER, 2) == pytest.approx(10 / 4 - 1)
    assert workers_gain(waiting, LOADER, 8) == pytest.approx(10 / 2.05 - 1)
    assert persistent_gain(waiting, dataclasses.replace(LOADER, start_s=2.0)) == pytest.approx(0.25)


def test_changes_of_workers_that_exist() -> None:
    loader = dataclasses.replace(LOADER, num_workers=1, iterators=5, start_s=1.0)
    found = names(observation(seconds={"data_wait": 9.0}, thread_s=1.0, cpu_s=1.0, loaders=[loader]))
    assert {name for name, _ in found} == {"num_workers", "persistent_workers", "prefetch_factor"}
    on_gpu = observation(seconds={"data_wait": 9.0}, cpu_s=1.0, loaders=[loader], device="cuda:0")
    assert ("pin_memory", True) in names(on_gpu) and ("pin_memory", True) not in found


def test_vector_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsals = []
    monkeypatch.setattr(rehearsal, "async_step_s", lambda *figures: rehearsals.append(figures))  # None: it fails
    site = {"what": "SyncVectorEnv", "name": "SyncVectorEnv", "where": "/w.py:3", "value": None, "switches": {}}
    sync = observation(seconds={"env": 9.0}, thread_s=1.0, env_calls=100, num_envs=4, sites=[site])
    assert names(sync) == [("vector_env", "async")]
    assert rehearsals == [(4, pytest.approx(9 / 400), 0.0)]
    assert async_gain(sync, lambda *_: None) == pytest.approx(10 / (1 + 9 / 4 + 0.08) - 1)
    assert async_gain(sync, lambda *_: 0.03) == pytest.approx(10 / (1 + 3) - 1)
    computing = dataclasses.replace(sync, thread_s=10.0)
    assert async_gain(computing, lambda *_: None) == pytest.approx(10 / (1 + 9 / 2 + 0.08) - 1)
    assert names(dataclasses.replace(sync, num_envs=1)) == []
    parallel = {**site, "what": "AsyncVectorEnv", "name": "AsyncVectorEnv"}
    fast = observation(seconds={"env_wait": 9.0}, env_calls=1000, num_envs=4, sites=[parallel], workers_env_s=1.0)
    assert names(fast) == [("vector_env", "sync")] and sync_gain(fast) == pytest.approx(4.0)


def test_environments_in_processes_are_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    step_s = rehearsal.async_step_s(10, 0.02, 0.0)
    assert step_s is not None and 0.018 <= step_s < 0.15, "one after another, they would take 0.2 s"
    monkeypatch.setattr(rehearsal.sys, "executable", "/nonexistent/python")
    assert rehearsal.async_step_s(10, 0.02, 0.0) is None


def test_threads_and_optimisers() -> None:
    updating = observation(seconds={"update": 10.0}, sites=SITES)
    assert set(names(updating)) == {("threads", 1), ("optimizer", "foreach")}
    assert ("optimizer", "fused") in names(updating, True)  # its results differ in the last bits
    assert ("threads", 2) in names(dataclasses.replace(updating, threads=16))
    chosen = [{**SITES[0], "switches": {"foreach": None, "fused": True}}]
    assert ("optimizer", "foreach") not in names(dataclasses.replace(updating, sites=chosen))


def test_nothing_that_changes_results_is_tried_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "_cpu_has_bfloat16", lambda: True)
    monkeypatch.setattr(plausible.shutil, "which", lambda name: "/usr/bin/g++")
    rendering = Line("env", "/w.py:1", "", "/x/site-packages/mujoco/renderer.py:9", 3.0)
    for device in ("cpu", "cuda:0"):
        found = observation(seconds={"update": 7.0, "env": 3.0}, sites=SITES, device=device, lines=[rendering])
        assert all(not change.numerics for change in plausible_changes(found, False))
        numeric = {change.name for change in plausible_changes(found, True) if change.numerics}
        assert numeric >= {"autocast", "compile", "shadows", "optimizer"} | ({"tf32"} if device != "cpu" else set())
    assert "cudnn_benchmark" in [name for name, _ in names(found)]


def test_output(tmp_path: Any) -> None:
    script = tmp_path / "w.py"
    script.write_text("x = 1\nprint(x)\n")
    lines = [Line("log", f"{script}:1", "", "", 4.0), Line("save", f"{script}:1", "", "", 2.0)]
    site = {"what": "SummaryWriter", "name": "SummaryWriter", "where": f"{script}:1", "value": None, "switches": {}}
    found = observation(seconds={"log": 4.0, "save": 2.0}, lines=lines)
    assert names(found) == [("save_every", 10)]  # no known logger
    logging = dataclasses.replace(found, sites=[site], logger_share=0.4)
    assert names(logging) == [("log_every", 10), ("save_every", 10)]
    held_up = dataclasses.replace(logging, logger_share=0.8)
    log, save = plausible_changes(held_up, False)
    assert log.predicted == pytest.approx(1 / 0.28 - 1)
    assert save.predicted is None and save.at_most == pytest.approx(1 / 0.8 - 1), "the logger's thread may be the limit"
    assert all(change.predicted is not None for change in plausible_changes(logging, False))
    assert cadence_gain(0.5, 10) == pytest.approx(1 / 0.55 - 1)
    assert names(observation(lines=[Line("other", f"{script}:2", "", "", 4.0)])) == [("print_every", 10)]
    assert names(observation(lines=[Line("other", "", "", "/s/site-packages/tqdm/std.py:9", 4.0)])) == [("tqdm", 10)]


def test_lines_of_other_processes_do_not_add_up() -> None:
    rendering = Line("env", "/w.py:1", "", "/x/site-packages/mujoco/renderer.py:9", 6.0)
    found = observation(seconds={"env": 6.0}, lines=[], worker_lines=[[rendering], [rendering]])
    changes = [change for change in plausible_changes(found, True) if change.name == "shadows"]
    assert [change.at_most for change in changes] == [pytest.approx(1.5)]
    assert cadence_gain(1.2, 10) < 1000  # at most the gain if the calls took no time


def test_lines_of_output_are_those_of_the_process_that_trains() -> None:
    line = Line("other", "", "", "/s/site-packages/tqdm/std.py:9", 6.0)
    record = Record(1, 0, 0, {"rank": "0"}, [])
    ledger = Ledger(10.0, {"other": 10.0}, {}, {}, 1.0, 1.0)
    ranks = [ProcessTimes(record, ledger, {}, 0, 0, 0, 10, 10, {}, 0.0, lines=[line]) for _ in range(2)]
    found = observed(ranks[0], ranks, 0, 1, 2)
    assert found.lines == [line] and found.worker_lines == [[line]]
    assert [change.predicted for change in plausible_changes(found, False)] == [pytest.approx(1 / 0.46 - 1)]


def test_the_thread_of_a_logger_holds_up_everything_else() -> None:
    def times(thread_s: float, cpu_s: float, threads: int = 1, **seconds: float) -> ProcessTimes:
        record = Record(1, 0, 0, {"rank": ""}, [{"kind": "optimizer", "threads": threads}])
        return ProcessTimes(record, Ledger(10.0, seconds, {}, {}, cpu_s, thread_s), {}, 0, 0, 0, 10, 10, {}, 0.0)

    held_up = times(4.0, 12.0, log=5.0, update=5.0)
    advice = _advice(Finding("log-blocking", 0.5, "", "Log less often."), held_up)
    assert advice.at_most == pytest.approx(5.0) and "hold up the loop for 30% more" in advice.change
    assert held_up.held_up_s == pytest.approx(6.0) and held_up.logger_share == pytest.approx(0.5 + 0.5 * 0.6)
    assert times(4.0, 6.0, log=5.0).held_up_s == pytest.approx(2.0), "the other threads hardly ran"
    assert times(4.0, 12.0, log=1.0, env_wait=5.0).held_up_s == pytest.approx(1.0), "another process was waited for"
    assert times(4.0, 12.0, threads=1000, log=5.0).logger_share == pytest.approx(0.5), "threads of torch"
    assert times(10.0, 10.0, log=5.0).logger_share == pytest.approx(0.5)
