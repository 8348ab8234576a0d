"""The doctor on a machine with a GPU: every check answers, and the figures are those of a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from powerband.cli import main as cli
from powerband.doctor.checks.recipes import recipe_row
from powerband.recipes.snakes import RECIPE

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_every_section_answers_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["doctor", "accelerator", "precision", "copies", "rendering", "--json", "doctor.json"])
    rows = {(row["section"], row["name"]): row for row in json.loads(Path("doctor.json").read_text())["rows"]}
    assert [row for row in rows.values() if "the check itself failed" in row["measured"]] == []
    assert rows["accelerator", "gpu"]["figures"]["gpus"] == torch.cuda.device_count()
    large = {name: rows["precision", f"cuda:0 {name}"]["figures"]["large_gflops"] for name in ("fp32", "bf16")}
    assert large["bf16"] > large["fp32"] > 1_000
    assert rows["copies", "cuda:0 pinned"]["figures"]["up_gb_s"] > 1


def test_the_updates_of_a_recipe_are_timed() -> None:
    row = recipe_row("snakes ppo", lambda: RECIPE, "ppo", torch.device("cuda:0"))
    assert row.status == "ok" and row.metrics["update_ms"] > 0
