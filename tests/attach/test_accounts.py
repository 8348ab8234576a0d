"""Accounts of samples: by the file and the function of a stack, by its callers, and by the events around it."""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import cloudpickle
import numpy
import pytest

from powerband.attach.processes.launch import BOOTSTRAP
from powerband.attach.times.process_times import _divided


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the instrumentation, which is not attached to this process."""
    monkeypatch.syspath_prepend(str(BOOTSTRAP))
    yield lambda name: importlib.import_module(f"powerband_attach.profile.{name}")
    for name in [name for name in sys.modules if name.startswith("powerband_attach")]:
        del sys.modules[name]


@functools.cache
def function_in(path: str, name: str) -> Any:
    """Returns a function in a file that calls the first of the given functions with the rest of them."""
    space: dict[str, Any] = {}
    exec(compile(f"def {name}(rest): return rest[0](rest[1:])", path, "exec"), space)
    return space[name]


def frame_of(path: str, *functions: str) -> FrameType:
    """Returns the frame of the innermost of nested functions in a file."""
    return stack_of(*((path, name) for name in functions))


def stack_of(*functions: tuple[str, str]) -> FrameType:
    """Returns the frame of the innermost of nested functions, each given by its file and its name."""
    calls = []
    for path, name in functions:
        calls.append(function_in(path, name))
    calls.append(lambda rest: sys._getframe(1))
    return calls[0](calls[1:])


@pytest.mark.parametrize(
    ("path", "functions", "account"),
    [
        ("/home/me/replay_buffer.py", ["sample"], "sample"),
        ("/home/me/replay_buffer.py", ["add"], "store"),
        ("/home/me/memories.py", ["add_samples"], "store"),
        ("/home/me/train.py", ["compute_gae"], "returns"),
        ("/x/site-packages/tensorboard/writer.py", ["write"], "log"),
        ("/home/me/train.py", ["train"], ""),
    ],
)
def test_a_place_has_an_account(profile: Any, path: str, functions: list[str], account: str) -> None:
    place = profile("places").place_of(frame_of(path, *functions))
    assert place.account == account
    assert (place.library if "site-packages" in path else place.line) == f"{path}:1"


def test_a_comprehension_is_not_called_from_its_own_line(profile: Any) -> None:
    space: dict[str, Any] = {"place_of": profile("places").place_of, "frame": lambda: sys._getframe(1)}
    code = "def batch():\n    return next(place_of(frame()) for _ in [0])\ndef train():\n    return batch()\n"
    exec(compile(code, TRAIN, "exec"), space)
    place = space["train"]()
    assert (place.line, place.caller) == (f"{TRAIN}:2", f"{TRAIN}:4")


@pytest.mark.parametrize(
    ("path", "user", "torch"),
    [
        ("/home/me/train.py", True, ""),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False, ""),
        ("/x/dist-packages/torch/nn/functional.py", False, "tensor"),
        ("/x/site-packages/skrl/agents/torch/ppo.py", False, ""),
        ("/tmp/torchinductor_me/ab/cab.py", False, "tensor"),
        ("/cache/of/torch/ab/cab.py", False, "tensor"),
        (json.__file__, False, ""),
        ("<string>", False, ""),
    ],
)
def test_files_of_packages_of_the_interpreter_and_of_compiled_code_are_not_the_users(
    profile: Any, monkeypatch: pytest.MonkeyPatch, path: str, user: bool, torch: str
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/cache/of/torch")
    place = profile("places").place_of(frame_of(path, "function"))
    assert (place.line.startswith(path), place.torch) == (user, torch)
    assert importlib.import_module("powerband_attach.user_code").is_user_file(path) is user


def test_packages_in_a_folder_of_pip_are_not_the_users(
    profile: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profile("places")
    is_user_file = importlib.import_module("powerband_attach.user_code").is_user_file
    target, project = tmp_path / "packages", tmp_path / "project"
    (target / "skrl-2.1.1.dist-info").mkdir(parents=True)
    (project / "project.egg-info").mkdir(parents=True)  # an editable package
    for folder in (target, project):
        monkeypatch.syspath_prepend(str(folder))
    assert not is_user_file(f"{target}/skrl/agents/ppo.py")
    assert is_user_file(f"{project}/train.py")
    assert is_user_file(f"{target}-of-mine/train.py")


TRAIN, PROCESS = "/home/me/train.py", multiprocessing.__file__.replace("__init__", "process")
BAR, TORCH = "/x/site-packages/tqdm/std.py", "/x/site-packages/torch/utils/data/fetch.py"


@pytest.mark.parametrize(
    ("stack", "account"),
    [
        ([(PROCESS, "run"), (TRAIN, "learn")], ""),
        ([(PROCESS, "run"), ("/x/site-packages/gymnasium/worker.py", "work")], ""),
        ([(PROCESS, "run"), (TRAIN, "learn"), (PROCESS, "recv")], "wait"),
        ([(TRAIN, "train"), (PROCESS, "recv"), (threading.__file__, "wait")], "wait"),
        ([(TRAIN, "train"), (BAR, "iterate"), (TRAIN, "batches")], ""),
        ([(TRAIN, "train"), (BAR, "iterate"), (threading.__file__, "write")], "log"),
        ([(TRAIN, "train"), (TORCH, "fetch"), (TRAIN, "load_image")], "data_wait"),
        ([(TRAIN, "save_model"), (TRAIN, "pack")], "save"),
    ],
)
def test_what_a_library_calls_is_not_the_work_of_the_library(
    profile: Any, stack: list[tuple[str, str]], account: str
) -> None:
    assert profile("places").place_of(stack_of(*stack)).account == account


def test_an_evaluation_has_its_name_and_steps_environments_without_updates(profile: Any) -> None:
    place_of, callers = profile("places").place_of, profile("callers").Callers()
    around = ["evaluation", "train"]  # evaluates parameters by a whole training
    episode, critic = place_of(frame_of(TRAIN, *around, "evaluate_policy")), frame_of(TRAIN, *around, "evaluate")
    assert not callers.evaluates(episode)
    callers.add("optimizer", place_of(frame_of(TRAIN, *around)))
    callers.add("env", episode)
    assert callers.evaluates(episode) and callers.account(episode, "env", "env") == "eval"
    assert not callers.evaluates(place_of(critic)) and not callers.evaluates(place_of(frame_of(TRAIN, *around)))
    assert callers.account(place_of(critic), "env", "backward") != "eval"
    assert callers.evaluates(place_of(frame_of(TRAIN, *around, "validation_step")))
    library = stack_of((TRAIN, "train"), ("/x/site-packages/tianshou/trainer.py", "_test_step"), (TRAIN, "collect"))
    assert callers.evaluates(place_of(library))


@pytest.mark.parametrize(
    ("torch", "before", "after", "account"),
    [
        ("module", "env", "env", "act"),
        ("module", "optimizer", "env", "act"),
        ("module", "env", "backward", "forward"),
        ("tensor", "backward", "optimizer", "optimizer"),  # gradient clipping
        ("", "optimizer", "env", "optimizer"),  # target networks
        ("", "env", "env", "store"),
        ("", "env", "backward", "sample"),
        ("", "data_wait", "backward", "forward"),
        ("", "optimizer", "data_wait", "other"),
    ],
)
def test_events_decide_the_account_of_a_loop_in_one_function(
    profile: Any, torch: str, before: str, after: str, account: str
) -> None:
    place = profile("places").Place("", torch, "train.py:1", "", "", ())
    assert profile("callers").Callers().account(place, before, after) == account


@pytest.mark.parametrize(
    ("top", "found", "account"),
    [
        ("optimizer", "log", "log"),  # a closure that logs
        ("backward", "save", "save"),
        ("optimizer", "sample", "optimizer"),
        ("env", "log", "env"),
        ("env", "wait", "env_wait"),
        ("other", "wait", "idle"),
    ],
)
def test_logging_inside_of_an_update_interrupts_it(profile: Any, top: str, found: str, account: str) -> None:
    place = profile("places").Place(found, "", "train.py:1", "", "", ())
    assert profile("sampler")._inside(top, place) == account


def test_functions_that_only_update_or_only_collect_decide_first(profile: Any) -> None:
    place, callers = profile("places").Place, profile("callers").Callers()
    function = profile("places").Function
    names = ("learn", "train", "collect", "load")
    learn, train, collect, load = (function(compile(name, name, "eval")) for name in names)
    callers.add("backward", place("", "", "", "", "", (train, learn)))
    callers.add("env", place("", "", "", "", "", (collect, learn)))
    assert callers.account(place("", "", "", "", "", (train, learn)), "env", "env") == "optimizer"
    assert callers.account(place("", "", "", "", "", (collect, learn)), "optimizer", "backward") == "store"
    assert callers.account(place("", "", "", "", "", (learn,)), "optimizer", "data_wait") == "other"
    callers.add("data_wait", place("", "", "", "", "", (load, learn)))
    assert callers.account(place("", "", "", "", "", (load, learn)), "data_wait", "backward") == "data_wait"


def test_a_clock_counts_each_nanosecond_once(profile: Any) -> None:
    clock = profile("clock").Clock()
    began = clock.since
    clock.enter(clock.account("env"))
    clock.enter(clock.account("backward"))
    clock.leave()
    clock.leave()
    read = clock.read()
    assert sum(read["ns"].values()) == read["now_ns"] - began
    assert read["counts"] == {"env": 1, "backward": 1} and read["ns"].keys() == {"other", "env", "backward"}


def test_samples_divide_the_time_of_a_span() -> None:
    samples = [["env", "env", "a.py:1", "", "", 3], ["env", "env_wait", "a.py:2", "", "", 1]]
    host, lines = _divided({"env": 8.0, "other": 1.0}, [{"samples": samples}])
    assert host == {"env": 6.0, "env_wait": 2.0, "other": 1.0}
    assert [(line.where, line.seconds) for line in lines] == [("a.py:1", 6.0), ("a.py:2", 2.0)]


def test_a_clock_that_restarts_inside_of_an_environment_goes_on(profile: Any) -> None:
    """A worker that is forked inside of ``reset`` returns from it, and steps its own environment."""
    clock = profile("clock").clock
    timed = profile("timed").timed_env_call
    step = timed(lambda env: None, "step")

    def reset_of_parent(env: Any) -> None:
        clock.restart()
        step(env)

    timed(reset_of_parent, "reset")(object())
    step(object())
    assert (clock.read()["counts"], clock.env_steps, clock.top.name) == ({"env": 2}, 2, "other")


def test_samples_without_a_following_event_are_counted(profile: Any) -> None:
    module = profile("sampler")
    sampler, clock = module.Sampler(), profile("clock").clock
    clock.restart()
    for _ in range(module.MOST_PENDING + 10):
        sampler._sample(1)
    assert [(key[:2], count) for key, count in sampler._samples.items()] == [(("other", "other"), 10)]
    sampler.end_pending()
    assert sum(sampler._samples.values()) == module.MOST_PENDING + 10 and not sampler._pending


def test_an_environment_that_keeps_the_interpreter_shows_an_evaluation(profile: Any) -> None:
    """The sampler sees no stack inside of its ``step``, only those around it."""
    sampler, clock = profile("sampler").Sampler(), profile("clock").clock
    step = profile("timed").timed_env_call(lambda env: None, "step")

    def episode(_: list) -> None:
        sampler._sample(1)
        step(object())
        sampler._sample(1)

    clock.restart()
    function_in(TRAIN, "evaluate")([episode])
    sampler.end_pending()
    assert [account for _, account, *_ in sampler._samples] == ["eval", "eval"]


def test_a_closed_stream_is_not_flushed(profile: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, failures = profile("output"), []
    monkeypatch.setenv("POWERBAND_ATTACH_DIR", str(tmp_path))
    record = importlib.import_module("powerband_attach.record")
    monkeypatch.setattr(record, "write", lambda *_, **fields: failures.append(fields))
    (tmp_path / module.ASKED).touch()
    with open(os.devnull, "w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
    module.flush_if_asked()
    assert len(list(tmp_path.iterdir())) == 2 and not failures, "the question and the answer"


def test_an_idle_thread_is_looked_at_rarely_and_each_look_counts_for_the_time(profile: Any) -> None:
    module = profile("sampler")
    sampler, clock = module.Sampler(), profile("clock").clock
    clock.restart()
    clock.enter(clock.account("env"))
    clock.leave()
    clock.fold()
    looks: list[int] = []
    sampler._sample = looks.append
    sampler.start()
    time.sleep(1.5)  # idle, with a span
    idle, end = list(looks), time.thread_time() + 0.5
    while time.thread_time() < end:
        pass
    sampler.stop()
    busy = looks[len(idle) :]
    assert idle.count(round(module.IDLE_S / module.SAMPLE_S)) >= 5 and len(idle) <= 20 and busy.count(1) >= 10
    assert sum(idle) * module.SAMPLE_S == pytest.approx(1.5, abs=0.5)


def test_a_busy_thread_with_spans_is_looked_at_more_rarely_after_some_seconds(profile: Any) -> None:
    module = profile("sampler")
    sampler, clock = module.Sampler(), profile("clock").clock
    clock.restart()
    assert sampler._wait_s(100.0, idle=False) == module.SAMPLE_S, "without spans only samples say where the time goes"
    clock.enter(clock.account("env"))
    clock.fold()
    waits = [sampler._wait_s(100.0 + after, idle=False) for after in (0.0, module.EARLY_S - 0.1, module.EARLY_S + 0.1)]
    assert waits == [module.SAMPLE_S, module.SAMPLE_S, module.LATER_S]
    assert round(module.LATER_S / module.SAMPLE_S) == pytest.approx(module.LATER_S / module.SAMPLE_S)


def test_spans_of_several_accounts_with_one_name_are_one_account(profile: Any) -> None:
    clock = profile("clock").Clock()
    first, second = clock.account("data_wait"), clock.account("data_wait")
    for account in (first, second, second):
        clock.enter(account)
        time.sleep(0.002)
        clock.leave()
    read = clock.read()
    assert read["counts"] == {"data_wait": 3} and first.spans == 1 and second.spans == 2
    assert read["ns"]["data_wait"] == first.ns + second.ns == clock.spent_ns("data_wait") > 6_000_000
    assert read["worst_ns"]["data_wait"] == max(first.longest, second.longest) and not clock.events


def test_an_end_without_a_start_is_left_out(profile: Any) -> None:
    """Ctrl-C may interrupt the start of a span, in a script that goes on."""
    clock = profile("clock").Clock()
    account = clock.account("env")
    clock.leave()
    clock.enter(account)
    clock.leave()
    read = clock.read()
    assert read["counts"] == {"env": 1} and clock.top.name == "other"


COPIED = """
import cloudpickle, sys
class Env:
    num_envs = 2
    def step(self, actions):
        return actions + 1
    def reset(self, *, seed=None):
        return seed
    def render(self):
        return "image"
sys.path.insert(0, sys.argv[1])
from powerband_attach.profile.clock import clock
from powerband_attach.profile.environments import _wrap
_wrap(Env)
env = Env()
assert env.step(actions=1) == 2 and env.reset(seed=5) == 5 and env.render() == "image"
assert clock.read()["counts"] == {"env": 2} and clock.env_steps == 2
sys.stdout.buffer.write(cloudpickle.dumps(env))
"""


def test_a_copied_class_works_without_the_instrumentation() -> None:
    """cloudpickle copies the classes of a main script with their timed methods, also into files."""
    copied = subprocess.run([sys.executable, "-c", COPIED, str(BOOTSTRAP)], capture_output=True, check=True).stdout
    env = cloudpickle.loads(copied)
    assert "powerband_attach" not in sys.modules
    assert env.step(1) == 2 and env.step(actions=1) == 2 and env.reset(seed=5) == 5 and env.render() == "image"


def test_the_number_of_environments_is_read_from_any_object(profile: Any) -> None:
    class Raises:
        def __getattr__(self, name: str) -> Any:
            return {"action_space": 1}[name]

    number_of_envs = profile("clock").number_of_envs
    assert number_of_envs(Raises()) == 1, "an error of the user's attributes stays in the instrumentation"
    assert number_of_envs(SimpleNamespace(num_envs=numpy.int64(8))) == 8
    assert number_of_envs(SimpleNamespace(num_envs=True)) == 1
