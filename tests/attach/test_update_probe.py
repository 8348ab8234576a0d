"""Causes inside of updates, and images: what the probe after the window and the drawing of environments tell."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.attach.processes.launch import BOOTSTRAP
from powerband.attach.processes.records import Record
from powerband.attach.times.process_times import ProcessTimes
from powerband.attach.times.update_facts import render_facts, update_facts
from powerband.cli.main import main
from powerband.tune.diagnose.diagnosis import diagnose
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import Ledger

# Random targets keep the gradients away from subnormal numbers, whose arithmetic is slow.
SCRIPT = """
import sys, time
import gymnasium, numpy as np, torch

rows, reads, draws = (int(word) for word in sys.argv[1:])
torch.set_num_threads(1)

class Drawn(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        return np.zeros(8, np.float32), {}
    def render(self):
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            pass
    def step(self, action):
        if draws:
            self.render()
        return np.ones(8, np.float32), 1.0, False, False, {}

def slow_answer(tensor):  # a busy device, below the Python interface
    time.sleep(0.01)
    return tensor.detach().numpy().item()

if reads:
    library = torch.library.Library("aten", "IMPL")
    library.impl("_local_scalar_dense", slow_answer, "CPU")
env = Drawn()
net = torch.nn.Sequential(torch.nn.Linear(8, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
env.reset()
while True:
    env.step(0)
    for _ in range(1 if draws else 10):
        loss = (net(torch.randn(rows, 8)) - torch.randn(rows, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for _ in range(reads):
            loss.item()
"""
CLOSURE = """
    def closure():
        loss = (net(torch.randn(rows, 8)) - torch.randn(rows, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        return loss
    optimizer.step(closure)
"""


def profile_of(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Returns the profile of `SCRIPT`."""
    (tmp_path / "script.py").write_text(SCRIPT)
    report = tmp_path / "profile.json"
    command = ["profile", "seconds=2", f"--json={report}", "--", sys.executable, str(tmp_path / "script.py"), *words]
    assert main(command) == 0
    return json.loads(report.read_text())


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("2", "0", "0"), "small-batch"),
        pytest.param(("2048", "0", "0"), "update-bound", marks=pytest.mark.slow),
        (("64", "5", "0"), "host-sync"),
        pytest.param(("64", "0", "1"), "software-rendering", marks=pytest.mark.slow),
    ],
)
def test_the_reason_of_slow_updates_and_environments_is_found(
    words: tuple[str, ...], cause: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    profile = profile_of(tmp_path, *words)
    assert (profile["cause"], profile["failures"]) == (cause, []), capfd.readouterr().err


def test_arithmetic_in_a_closure_is_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = SCRIPT.index("    for _ in range(1 if draws")
    monkeypatch.setattr(sys.modules[__name__], "SCRIPT", SCRIPT[:loop] + CLOSURE)
    facts = profile_of(tmp_path, "2048", "0", "0")["ranks"][0]["facts"]
    assert facts["compute_share"] > 0.5, capfd.readouterr().err


def test_too_many_threads_are_repeated_with_as_many_as_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    threads = 3 * (os.cpu_count() or 1)
    monkeypatch.setattr(
        sys.modules[__name__], "SCRIPT", SCRIPT.replace("set_num_threads(1)", f"set_num_threads({threads})")
    )
    facts = profile_of(tmp_path, "64", "0", "0")["ranks"][0]["facts"]
    # Two threads on a busy machine may take longer than the limit of the probe.
    assert set(facts["threads_s"]) >= {str(threads), "1"}, capfd.readouterr().err


def leader(seconds: dict[str, float], lines: list[dict[str, Any]], **others: Any) -> ProcessTimes:
    """Returns a process that trained for 10 s with 100 updates."""
    record = Record(1, 0, 0, {"rank": ""}, lines)
    parts = {"backward": 2.0, "optimizer": 1.0}
    values: dict[str, Any] = {"queue_s": 0.0, **others}
    return ProcessTimes(record, Ledger(10.0, seconds, thread_s=3.0), parts, 0, 0, 1, 100, 100, {}, **values)


def test_a_probe_becomes_facts() -> None:
    probe = {"kind": "update_profile", "updates": 10, "operations": 500, "compute_s": 0.1, "reads": 20, "read_s": 0.04}
    threads = {"kind": "threads_probe", "threads": 1, "updates": 10, "seconds": 0.1}
    optimizer = {"kind": "optimizer", "threads": 64}
    facts = update_facts(leader({"update": 5.0}, [optimizer, probe, threads]), iterations=200)
    assert facts["compute_share"] == pytest.approx(0.2)  # 10 ms of 50 ms
    assert (facts["update_operations"], facts["syncs_per_iteration"]) == (50, 1)
    assert facts["sync_s"] == pytest.approx(2e-3)
    assert facts["threads_s"] == {64: pytest.approx(0.05), 1: pytest.approx(0.05 / 3)}  # spans: 10 ms instead of 30 ms
    queued = update_facts(leader({"update": 5.0, "env": 4.0}, [probe], queue_s=3.0), 200)
    assert queued["compute_share"] == pytest.approx(0.4)  # half of the update had no core, and the environment slept
    assert update_facts(leader({"update": 5.0}, []), 200) == {}


def test_one_thread_may_be_the_fair_number_if_other_processes_have_the_cores() -> None:
    facts = WindowFacts(iterations=100, cores=8, threads=64, threads_s={64: 50e-3, 8: 90e-3, 1: 10e-3})
    diagnosis = diagnose(Ledger(10.0, {"update": 9.0, "env": 1.0}), facts)
    assert (diagnosis.cause, diagnosis.findings[0].fix.endswith(": 1.")) == ("thread-oversubscription", True)
    equal = WindowFacts(iterations=100, cores=8, threads=8, threads_s={8: 90e-3, 1: 10e-3})
    assert diagnose(Ledger(10.0, {"update": 9.0, "env": 1.0}), equal).cause == "update-bound"


def test_images_in_workers_count_in_proportion_to_the_waiting() -> None:
    drawn = {"kind": "renderer", "name": "swrast (Mesa)"}
    worker = leader({"env": 4.0}, [drawn], render_s=3.0)
    facts = render_facts(leader({"env_wait": 6.0}, []), [worker])
    assert facts == {"renderer": "swrast (Mesa)", "render_share": pytest.approx(0.45)}
    assert render_facts(leader({"env": 6.0}, []), []) == {}
    seldom = WindowFacts(iterations=100, renderer="swrast (Mesa)", render_share=0.05)
    assert diagnose(Ledger(10.0, {"env": 9.0}), seldom).cause == "env-bound"


@pytest.fixture
def update_probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the probe, which is not attached to this process."""
    monkeypatch.syspath_prepend(str(BOOTSTRAP))
    yield importlib.import_module("powerband_attach.profile.update_probe")
    for name in [name for name in sys.modules if name.startswith("powerband_attach")]:
        del sys.modules[name]


def event(name: str, us: float, parent: Any = None, shapes: Sequence[Sequence[int]] = ((64, 64), (64, 64))) -> Any:
    return SimpleNamespace(
        name=name, self_cpu_time_total=us, cpu_time_total=us, cpu_parent=parent, input_shapes=shapes
    )  # fmt: skip


@pytest.mark.parametrize(("rows", "computes"), [(4, False), (512, True)])
def test_matrix_products_of_few_rows_only_launch(rows: int, computes: bool, update_probe: Any) -> None:
    products = {
        "aten::addmm": [[256], [rows, 512], [512, 256], [], []],  # forward
        "aten::mm": [[rows, 256], [256, 512]],  # gradient of the data
        "aten::bmm": [[1, 256, rows], [1, rows, 512]],  # gradient of the weight
    }
    sums = update_probe._sums([event(name, 110.0, shapes=shapes) for name, shapes in products.items()])
    assert sums["operations"] == 3
    assert sums["compute_s"] == pytest.approx(300e-6 if computes else 0.0)


def test_operations_of_optimisers_and_interrupted_ones_do_not_count(update_probe: Any) -> None:
    step = event("Optimizer.step#Adam.step", 100.0)
    events = [
        *(event("aten::mm", us) for us in (110.0, 110.0, 9000.0)),  # another process had the core in the last one
        event("aten::relu", 4.0),
        event("aten::mul", 500.0, event("aten::foreach", 1.0, step)),
        event("aten::_local_scalar_dense", 1.0, step),
        event("aten::_local_scalar_dense", 2000.0, event(update_probe.CLOSURE, 1.0, step)),
        event("autograd::engine::evaluate_function: MmBackward0", 300.0),
    ]
    sums = update_probe._sums(events)
    assert sums == {"operations": 5, "compute_s": pytest.approx(300e-6), "reads": 1, "read_s": pytest.approx(2e-3)}


def test_a_closure_of_an_optimiser_is_profiled_as_a_part_of_the_update(update_probe: Any) -> None:
    def closure() -> float:
        return 3.0

    probe = update_probe.UpdateProbe()
    assert probe.marked_closure(("optimizer", closure), {}) is None  # the profile has not begun
    probe._part = "profile"
    assert probe.marked_closure(("optimizer",), {}) is None
    (optimizer, marked), kwargs = probe.marked_closure(("optimizer", closure), {})
    assert (optimizer, marked(), kwargs) == ("optimizer", 3.0, {})
    args, kwargs = probe.marked_closure(("optimizer",), {"closure": closure})
    assert (args, kwargs["closure"]()) == (("optimizer",), 3.0)
