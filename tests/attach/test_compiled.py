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
