"""What a run of a torch script records: optimiser steps, rows, environments, simulator workers, and its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from powerband.attach.audit.comparison import environments, facts_of, single_steps, total
from powerband.attach.audit.short_run import Limits, ShortRun, run_short

LOOP = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
with torch.no_grad():
    net(torch.ones(1, 4))  # the first forward: no environment class exists yet

class Batch:  # a simulator of eight worlds
    def reset(self): pass
    def step(self, action): return None, torch.zeros(8)

class Single:
    def reset(self): pass
    def step(self, action): return None, 0.0

batch, kept = Batch(), []
for _ in range(10):
    optimizer.zero_grad()
    net(torch.ones(16, 4)).square().sum().backward()
    optimizer.step()
    batch.step(None)
    single = Single()  # the object before it ends
    single.step(None)
    kept.append(bytearray(64))
"""
VECTOR = """
import sys, time
import gymnasium, numpy as np, torch

class Point(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, seed=None, options=None): return np.zeros(4, np.float32), {}
    def step(self, action): return np.zeros(4, np.float32), 1.0, False, False, {}

if __name__ == "__main__":
    context, steps = sys.argv[1], int(sys.argv[2])
    envs = gymnasium.vector.AsyncVectorEnv([Point, Point], context=context)
    envs.reset()
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(1, steps + 1):
        envs.step(np.zeros(2, np.int64))
        time.sleep(0.01)
        if step % 20 == 0:
            weight.square().sum().backward()
            optimizer.step()
    envs.close()
"""
RANK = """
import argparse, os, subprocess, sys, time
if "RANK" not in os.environ:  # a launcher
    sys.exit(subprocess.run([sys.executable, "train.py"], env={**os.environ, "RANK": "0"}).returncode)
if "AGAIN" not in os.environ:
    os.execve(sys.executable, [sys.executable, "train.py"], {**os.environ, "AGAIN": "1"})

class World:
    def reset(self): pass
    def step(self, action): time.sleep(0.01)

parser = argparse.ArgumentParser()
parser.add_argument("--lr", default=0.1)
parser.parse_args()
world = World()
for _ in range(6000):
    world.step(None)
"""


def run(folder: Path, script: str, *arguments: str, window: float = 60.0) -> ShortRun:
    """Runs a script until its end, or until its window has ended. The instrumentation must not have failed."""
    (folder / "train.py").write_text(script)
    found = run_short([sys.executable, "train.py", *arguments], folder, {}, Limits(window_s=window, most_s=90))
    assert found.status == 0 and not found.lines("failure"), found.console
    return found


def test_steps_rows_and_settings_are_recorded(tmp_path: Path) -> None:
    found = run(tmp_path, LOOP)
    facts = facts_of(found.records[0])
    assert not found.stopped and (facts["counts"]["updates"], facts["counts"]["backward"]) == (10, 10)
    assert [len(facts["series"][name]) for name in ("loss", "gradients", "parameters")] == [10, 10, 10]
    assert len(set(facts["series"]["parameters"])) == 10
    assert facts["values"]["first groups"]["0"][0]["lr"] == "0.25"
    assert facts["values"]["rows"] == {"acting 1": 1, "learning 16": 10}
    assert facts["values"]["dtypes"] == {"float32 on cpu": True}


@pytest.mark.slow
def test_environments_of_different_sizes_are_summed_and_classes_are_found_late(tmp_path: Path) -> None:
    found = run(tmp_path, LOOP)
    assert environments(found) == 9  # eight worlds and one, of the objects that exist at the same time
    assert total(found, "env_steps") == 20 and single_steps(found) == 90


@pytest.mark.slow
def test_an_environment_class_of_the_main_script_goes_to_spawned_workers(tmp_path: Path) -> None:
    found = run(tmp_path, VECTOR, "spawn", "20")
    assert environments(found) == 2 and single_steps(found) == 40


@pytest.mark.slow
def test_simulator_workers_do_not_end_and_do_not_count_twice(tmp_path: Path) -> None:
    """Workers step before the eighth update for longer than twice the window."""
    found = run(tmp_path, VECTOR, "fork", "3000", window=0.5)
    assert found.stopped and not found.failed
    learner = next(facts for record in found.records if (facts := facts_of(record))["counts"].get("updates"))
    assert learner["counts"]["updates"] >= 8
    assert environments(found) == 2 and single_steps(found) == 2 * learner["counts"]["env_steps"]


def test_a_rank_without_updates_ends_after_its_first_steps(tmp_path: Path) -> None:
    found = run(tmp_path, RANK, window=0.3)
    assert found.stopped and total(found, "updates") == 0
    assert 0 < total(found, "env_steps") < 3000


SUBCLASSES = """
import typing
from powerband_attach.audit.runtime import environments

class Plain:
    pass
class Own:
    seen = []
    def __init_subclass__(cls, **kwargs): cls.seen.append((cls, kwargs))
class Parent(typing.Generic[typing.TypeVar("T")]):
    pass

for base in (Plain, Own, Parent):
    environments._watch_subclasses(base)
    class Env(base):
        def reset(self): pass
        def step(self, action): pass
    assert isinstance(Env.__dict__["step"], environments.Counted), base
class Named(Own, name=3): pass
assert Own.seen == [(Own.seen[0][0], {}), (Named, {"name": 3})], Own.seen
class Typed(Parent[int]): pass
try:
    class Wrong(Plain, name=3): pass
except TypeError:
    print("subclasses", "are counted")
"""
FORKED = """
import os, gymnasium, numpy as np

class Point(gymnasium.Env):
    inside = False
    def reset(self, seed=None, options=None): return np.zeros(4), {}
    def step(self, action):
        if self.inside:
            if os.fork() == 0:
                for _ in range(3): other.step(0)
                os._exit(0)
            os.wait()
        return np.zeros(4), 1.0, False, False, {}

env, other = Point(), Point()
env.inside = True
env.step(0)
env.inside = False
for _ in range(3): other.step(0)
"""


def test_a_base_class_of_environments_may_have_any_init_subclass(tmp_path: Path) -> None:
    """Python 3.12 has the one of `typing.Generic` in C."""
    found = run(tmp_path, SUBCLASSES)
    assert "subclasses are counted" in found.console


def test_a_process_that_was_forked_inside_of_a_step_counts_its_steps(tmp_path: Path) -> None:
    found = run(tmp_path, FORKED)
    counts = [facts_of(record)["counts"]["env_steps"] for record in found.records]
    assert sorted(counts) == [3, 4], found.records
