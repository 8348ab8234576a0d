"""Each change reaches a real script, in a copy of its folder; without the change the same script fails."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.attach.trial import trial_run
from powerband.attach.trial.change import Change, variables_of_threads
from powerband.attach.trial.trial_run import probed, run_once, timed_run
from powerband.attach.trial.work import Work

EVERYTHING = """
import builtins, os, torch, tqdm
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.writer import FileWriter
data = TensorDataset(torch.ones(64, 4))
other = DataLoader(data, 8)
loader = DataLoader(data, 8)  # the loader to change
assert len(list(loader)) == 8 and other.num_workers == 0
assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 7, True)

torch.set_num_threads(7)
assert torch.get_num_threads() == 3 and os.environ["OPENBLAS_NUM_THREADS"] == "3"
class One:
    def __len__(self): return 2
    def __getitem__(self, index): return torch.get_num_threads()
assert [int(n) for n in DataLoader(One(), num_workers=1)] == [1, 1]

net = torch.nn.Linear(4, 4)
for optimizer in (torch.optim.AdamW(net.parameters()), torch.optim.RMSprop(net.parameters())):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0].get("fused") is (True if type(optimizer).__name__ == "AdamW" else None)
assert torch.backends.cudnn.benchmark and torch.get_float32_matmul_precision() == "high"

written, saved, printed = [], [], []
FileWriter.add_summary = lambda self, *args, **kwargs: written.append(args)
class Lines:
    def write(self, text): printed.append(text)
    def flush(self): pass
writer = SummaryWriter("events")
for step in range(20):
    writer.add_scalar("a", step, step)
    writer.add_scalar("b", step, step)
    if os.path.exists("net.pt"):
        saved.append(step)
        os.remove("net.pt")
    torch.save({}, "net.pt")
    print(step, file=Lines(), end="")
assert len(written) == 4 and saved == [1, 11], (written, saved)
assert "10" in printed and "9" not in printed
assert tqdm.tqdm(disable=False).mininterval == 10
"""
CHANGES = {
    "num_workers": 2,
    "prefetch_factor": 7,
    "persistent_workers": True,
    "threads": 3,
    "optimizer": "fused",
    "cudnn_benchmark": True,
    "tf32": True,
    "log_every": 10,
    "save_every": 10,
    "print_every": 10,
}
NETWORKS = """
import torch
calls = []
torch.nn.Module.compile = lambda self, *args, **kwargs: calls.append(type(self).__name__)
net, unused = torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.nn.Tanh()
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for _ in range(3):
    out = net(torch.ones(2, 4))
    assert out.dtype == torch.bfloat16
    unused(out).sum().backward()
    optimizer.step()
with torch.no_grad():
    assert net(torch.ones(2, 4)).dtype == torch.float32
assert calls == ["Sequential"], calls
assert optimizer.param_groups[0]["foreach"] and net[0].weight.dtype == torch.float32
"""
VECTOR = """
import gymnasium as gym, numpy as np, os, sys
class Process(gym.Env):
    observation_space = gym.spaces.Box(0, 2**40, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)
    def __init__(self, size=1):
        pass
    def reset(self, seed=None, options=None):
        return np.array([float(os.getpid())]), {}
    def step(self, action):
        return np.array([float(os.getpid())]), 1.0, False, False, {}
gym.register("Process-v0", Process)
own = []
for envs in (gym.vector.SyncVectorEnv([Process] * 3), gym.vector.AsyncVectorEnv([Process] * 2),
             gym.make_vec("Process-v0", 2, size=3)):
    own.append(bool((envs.reset()[0] == os.getpid()).all()))
    envs.close()
assert own == EXPECTED, own
"""
WORK = Work("updates", 1, 10, 1.0)


def error_of(tmp_path: Path, source: str, changes: dict[str, Any], **settings: Any) -> str:
    """Runs a script with changes, and returns its last error."""
    (tmp_path / "train.py").write_text(source)
    variables = settings.pop("variables", {})
    settings |= {"change": changes}
    records, error = run_once([sys.executable, "train.py"], tmp_path, settings, variables, 200.0)
    assert [line for record in records for line in record.of_kind("failure")] == []
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]  # the run worked in a copy
    return error


def test_changes_reach_the_script(tmp_path: Path) -> None:
    line = EVERYTHING.splitlines().index("loader = DataLoader(data, 8)  # the loader to change") + 1
    variables = {**variables_of_threads(3), "TQDM_MININTERVAL": "10"}
    where = [f"{tmp_path / 'train.py'}:{line}"]
    assert error_of(tmp_path, EVERYTHING, CHANGES, where=where, variables=variables) == ""


@pytest.mark.slow
def test_a_script_without_one_of_the_changes_fails(tmp_path: Path) -> None:
    source = EVERYTHING.replace("assert len(list(loader)) == 8 and other.num_workers == 0", "")
    changes = {key: value for key, value in CHANGES.items() if key != "save_every"}
    variables = {**variables_of_threads(3), "TQDM_MININTERVAL": "10"}
    assert "18, 19])" in error_of(tmp_path, source, changes, variables=variables)


def test_a_change_that_does_not_reach_the_script_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('no loader')")
    run = timed_run([sys.executable, "train.py"], tmp_path, Change("num_workers", 2, "", 1.0), WORK, 1.0)
    assert run.error == "the change has not reached the script" and run.rate is None


@pytest.mark.slow
def test_precision_compilation_and_foreach_reach_the_networks(tmp_path: Path) -> None:
    changes = {"autocast": "bfloat16", "compile": True, "optimizer": "foreach"}
    assert error_of(tmp_path, NETWORKS, changes) == ""


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("async", [False, False, False]), ("sync", [True, True, True]), (None, [True, False, True])],
)
def test_vector_environments(mode: str | None, expected: list[bool], tmp_path: Path) -> None:
    source = VECTOR.replace("EXPECTED", str(expected))
    assert error_of(tmp_path, source, {"vector_env": mode} if mode else {}) == ""


def test_services_are_offline_and_writes_outside_end_the_run(tmp_path: Path) -> None:
    folder, outside = tmp_path / "work", tmp_path / "outside.txt"
    folder.mkdir()
    offline = "import os; assert os.environ['WANDB_MODE'] == 'offline' and os.environ['HF_HUB_OFFLINE'] == '1'"
    assert error_of(folder, offline, {}) == ""
    assert str(outside) in error_of(folder, f"open({str(outside)!r}, 'w')", {}) and not outside.exists()


SLOW = """
import time, torch
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for _ in range(10**6):
    time.sleep(0.02 * torch.get_num_threads())
    net(torch.ones(2, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timed
def test_a_run_ends_at_its_count_and_a_probe_predicts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.set_num_threads(4)\n" + SLOW)
    command = [sys.executable, "train.py"]
    run = timed_run(command, tmp_path, None, Work("updates", 10, 40, 2.5), 30.0)
    assert run.error == "" and run.rate is not None and 2 < run.rate < 12.5
    changes = [Change("threads", 2, "", 1.0), Change("threads", 4, "", 1.0)]
    gains, error = probed(command, tmp_path, changes, WORK, 30.0)
    assert error == "" and gains[0] is not None and gains[1] is not None
    assert gains[0] == pytest.approx(1.0, abs=0.45) and gains[1] == pytest.approx(0.0, abs=0.25)


def test_blocks_that_vary_predict_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steady, varying = [1.0, 1.04, 0.97, 1.01, 0.99, 1.02], [0.5, 1.1, 0.6, 1.4, 0.9, 0.4]
    blocks = [
        {"variant": variant, "updates": 100, "seconds": 100 * seconds}
        for variant, times in enumerate([steady, [0.5 * each for each in steady], varying, steady[:2]])
        for seconds in times
    ]
    record = SimpleNamespace(of_kind=lambda kind: blocks if kind == "probe" else [])
    monkeypatch.setattr(trial_run, "run_once", lambda *arguments: ([record], ""))
    changes = [Change("threads", number, "", 1.0) for number in (1, 2, 3)]
    gains, error = probed(["python"], tmp_path, changes, WORK, 1.0)
    assert error == "" and gains == [pytest.approx(1.0), None, None]
    assert probed(["python"], tmp_path, changes[:1], WORK, 1.0)[0] == [pytest.approx(1.0)]


def test_a_failing_script_is_named(tmp_path: Path) -> None:
    gains: Any = probed(
        [sys.executable, "-c", "raise KeyError('own')"], tmp_path, [Change("tf32", True, "", 1.0)], WORK, 1.0
    )
    assert gains == ([None], "KeyError: 'own'")


TF32 = """
import torch
torch.set_float32_matmul_precision("medium")
from powerband_attach.trial import probe
blocks = probe._Blocks([{}, {"tf32": True}], 2)
states = []
for _ in range(4):
    blocks._next(0.0)
    states.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
assert states == [("medium", True), ("high", True)] * 2, states
torch.backends.cudnn.allow_tf32 = False
"""


def test_a_probe_restores_the_precision_of_the_script(tmp_path: Path) -> None:
    assert error_of(tmp_path, TF32, {}) == ""
