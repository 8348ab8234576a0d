"""`powerband profile -- python train.py` on a GPU tells waiting for launches from computing."""

import json
import sys
from pathlib import Path

import pytest
import torch

from powerband.cli.main import main

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SCRIPT = Path(__file__).parents[2] / "benchmarks/attach/framework_scripts/on_gpu.py"


@pytest.mark.parametrize(
    ("words", "cause", "least", "most"),
    [
        (("64", "256"), "launch-bound", 0.0, 0.5),
        (("8192", "4096"), "update-bound", 0.6, 1.0),
        (("8192", "4096", "--read"), "update-bound", 0.6, 1.0),
    ],
)
def test_the_time_of_the_device_decides_about_the_cause(words, cause, least, most, tmp_path):
    report = tmp_path / "profile.json"
    command = ["profile", "seconds=2", f"--json={report}", "--", sys.executable, str(SCRIPT), "1000000000", *words]
    assert main(command) == 0
    found = json.loads(report.read_text())
    assert (found["cause"], found["failures"]) == (cause, []), found["sentence"]
    facts = found["ranks"][0]["facts"]
    assert least <= facts["device_busy"] <= most
    assert (facts["syncs_per_iteration"] > 0.9) == ("--read" in words)
    assert sum(found["ledger"].values()) == pytest.approx(found["wall_s"], rel=1e-6)
