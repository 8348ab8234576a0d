"""`powerband profile` on a GPU names launches as the cause, with the accounts that launch."""

import json

import pytest
import torch

from powerband.cli.main import main
from powerband.tune.diagnose.causes import CAUSES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_few_boards_are_bound_by_launches(tmp_path):
    table = tmp_path / "profile.json"
    arguments = ["profile", "snakes", "variant=demo", "seconds=2", "probe=false", f"run_dir={tmp_path / 'run'}"]
    assert main([*arguments, "--json", str(table)]) == CAUSES["launch-bound"][0]
    measured = json.loads(table.read_text())["ranks"][0]
    assert 0.0 < measured["facts"]["device_busy"] < 0.6
    assert {"env", "act", "update"} <= measured["ledger"]["launch"].keys(), "the environments run on the GPU too"
    assert sum(measured["ledger"]["seconds"].values()) == pytest.approx(measured["ledger"]["wall_s"], rel=1e-6)
