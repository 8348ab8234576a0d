"""The report page of a script, and ``powerband.attach()`` as the first line of a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import powerband
from powerband.attach.findings import short_path
from powerband.attach.page import chrome_trace
from powerband.attach.processes.records import Record
from powerband.attach.times.process_times import process_times

LOOP = """
import powerband
measured = powerband.attach(json="profile.json")
import torch
net = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for _ in range(1000):
    optimizer.zero_grad()
    net(torch.ones(512, 256)).sum().backward()
    optimizer.step()
assert measured.profile() is not None
"""


def test_an_attached_script_writes_its_profile_when_it_ends(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(powerband.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", LOOP], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert profile["failures"] == [] and profile["ranks"][0]["facts"]["precision"] == "float32"
    assert "forward, backward, optimiser" in done.stderr


@pytest.mark.parametrize(
    ("first", "last"),
    [("", "if os.fork() == 0: os._exit(0)\nos.wait()\nos._exit(3)"), ("atexit.register(lambda: os._exit(3))", "")],
)
def test_a_script_that_ends_by_exit_has_its_report_once(first: str, last: str, tmp_path: Path) -> None:
    sources = str(Path(powerband.__file__).parents[1])
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": sources}
    (tmp_path / "tmp").mkdir()
    code = f"import atexit, os, time, powerband\n{first}\npowerband.attach(json='profile.json')\ntime.sleep(1)\n{last}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("of start-up") == 1
    assert json.loads((tmp_path / "profile.json").read_text())["failures"] == []
    assert not list((tmp_path / "tmp").iterdir())


SPAWN = """
import multiprocessing, os
import powerband
measured = powerband.attach(json="profile.json")
def work():
    assert measured.folder == powerband.attach().folder  # the parent's measurement
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start(); child.join()
    assert child.exitcode == 0
    try:
        powerband.attach()
    except powerband.ConfigError:
        print("refused")
"""


def test_a_spawned_process_belongs_to_the_measurement_of_its_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(powerband.__file__).parents[1])}
    (tmp_path / "script.py").write_text(SPAWN)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused\n" and "Error" not in done.stderr


def test_paths_of_packages_begin_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "peers" / "skrl-2.0.dist-info").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    assert short_path(f"{tmp_path}/peers/skrl/agents/ppo.py:7") == "skrl/agents/ppo.py:7"
    assert short_path("/x/lib/site-packages/skrl/agents/ppo.py:7") == "skrl/agents/ppo.py:7"
    assert short_path(f"{tmp_path}/own/train.py:3") == "train.py:3"
    assert short_path(f"{tmp_path}/other/train.py:3") == f"{tmp_path}/other/train.py:3"


def test_the_worst_span_is_one_of_the_window() -> None:
    """A span of 3 s before the window, such as a compilation, is not the worst one of the window."""
    common = {
        "kind": "times",
        "ns": {"env": 1},
        "samples": [],
        "worst_ns": {"env": 3 * 10**9},
        "envs": {},
        "num_envs": 1,
    }
    common |= dict.fromkeys(("cpu_s", "thread_s", "queue_s", "env_steps", "updates", "optimizer_steps"), 0)
    lines = [
        {**common, "now_ns": 0, "counts": {"env": 1}, "bins": {"env": {"63": 1}}},
        {**common, "now_ns": 10**9, "counts": {"env": 5}, "bins": {"env": {"63": 1, "40": 4}}},
    ]
    times = process_times(Record(1, 0, 0, {"rank": ""}, lines), 0, 10**9)
    assert times is not None and times.ledger.spans["env"].worst_s == 2.0**20 * 1e-9


def test_an_iteration_begins_with_the_first_environment_step_after_an_update() -> None:
    rollout = ["env", "env", "backward", "optimizer", "backward", "optimizer"]
    spans = [[account, 1000 * i, 1000 * i + 900] for i, account in enumerate(rollout * 3)]
    steps = [event for event in chrome_trace([{"spans": spans}])["traceEvents"] if event["name"] == "step"]
    assert [step["args"] for step in steps] == [{"env_steps": 2, "grad_steps": 2}] * 3
    events = chrome_trace([{"spans": spans}], num_envs=16, steps_per_update=2.0)["traceEvents"]
    steps = [event for event in events if event["name"] == "step"]
    assert [step["args"] for step in steps] == [{"env_steps": 32, "grad_steps": 1}] * 3, "two optimisers, one update"
    assert chrome_trace([]) == {}
