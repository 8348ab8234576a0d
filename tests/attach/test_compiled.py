"""A compiled network and loss have the same graphs, breaks and recompilations with and without instrumentation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from powerband.attach.processes.launch import launch

COMPILED = """
import torch
import torch._dynamo.utils
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters())

@torch.compile(backend="eager")
def loss_of(x):
    return net(x).square().mean()

for rows in (4, 4, 5, 6, 6):
    optimizer.zero_grad()
    loss_of(torch.ones(rows, 8)).backward()
    optimizer.step()
counters = torch._dynamo.utils.counters
print(dict(counters["stats"]), sorted(counters["graph_break"].values()), dict(counters["frames"]))
"""


UPDATE = """
import torch
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(net.parameters())

@torch.compile(backend="eager")
def update(x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

for _ in range(6):
    update(torch.ones(4, 8))
print("finished")
"""


@pytest.mark.slow
def test_a_compiled_update_runs_without_warnings_of_the_instrumentation(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UPDATE)
    with (tmp_path / "out.txt").open("wb") as out:
        launched = launch([sys.executable, str(tmp_path / "script.py")], "profile", tmp_path, stdout=out, stderr=out)
        launched.wait()
    text = (tmp_path / "out.txt").read_text()
    assert launched.status == 0 and "finished" in text, text
    assert "get_ident" not in text and "powerband_attach" not in text, text


@pytest.mark.slow
def test_graphs_breaks_and_recompilations_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(COMPILED)
    outputs = []
    for tool in ("", "profile"):
        with (tmp_path / "out.txt").open("wb") as out:
            launched = launch([sys.executable, str(tmp_path / "script.py")], tool, tmp_path, stdout=out)
            launched.wait()
        assert launched.status == 0
        outputs.append((tmp_path / "out.txt").read_text())
    assert outputs[0] == outputs[1] != ""
