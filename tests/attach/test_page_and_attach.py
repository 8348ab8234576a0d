"""The report page of a script, and ``powerband.attach()`` as the first line of a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import powerband
from powerband.attach.page import chrome_trace

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


def test_an_iteration_begins_with_the_first_environment_step_after_an_update() -> None:
    rollout = ["env", "env", "backward", "optimizer", "backward", "optimizer"]
    spans = [[account, 1000 * i, 1000 * i + 900] for i, account in enumerate(rollout * 3)]
    steps = [event for event in chrome_trace([{"spans": spans}])["traceEvents"] if event["name"] == "step"]
    assert [step["args"] for step in steps] == [{"env_steps": 2, "grad_steps": 2}] * 3
    assert chrome_trace([]) == {}
