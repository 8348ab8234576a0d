"""Precision: names, unsupported combinations, and the choice of auto."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from powerband.cli.main import main
from powerband.core.config import RunConfig
from powerband.core.optim import precision
from powerband.core.optim.precision import Precision
from powerband.core.run.run import Run

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Config:
    run: RunConfig


def fake_device(monkeypatch: pytest.MonkeyPatch, bf16: float) -> None:
    """Replaces the measurement by 1 GFLOP/s in fp32 and `bf16` GFLOP/s in bf16."""
    monkeypatch.setattr(precision, "peak", lambda device, name, size: 1e9 * {"fp32": 1.0, "bf16": bf16}[name])


def test_autocast_runs_products_in_the_chosen_type():
    a = torch.randn(4, 4)
    with Precision("bf16").autocast():
        assert (a @ a).dtype == torch.bfloat16
    with Precision("fp32").autocast():
        assert (a @ a).dtype == torch.float32
    with Precision("bf16").autocast(rows=16):  # too few rows for a gain on a CPU
        assert (a @ a).dtype == torch.float32
    assert Precision("bf16").scaler() is None


def test_fp16_needs_cuda():
    with pytest.raises(ValueError, match="bf16"):
        Precision("fp16", "cpu")


def test_unknown_name():
    with pytest.raises(ValueError, match="fp32, bf16, fp16"):
        Precision("fp8")


@pytest.mark.parametrize(("bf16", "name"), [(3.0, "bf16"), (1.05, "fp32"), (0.01, "fp32")])
def test_the_faster_one_is_named_with_its_figures(monkeypatch: pytest.MonkeyPatch, bf16: float, name: str) -> None:
    fake_device(monkeypatch, bf16)
    found, why = precision.faster_precision(CPU)
    assert found == name and f"{bf16:.3g} GFLOP/s in bf16, 1 in fp32" in why


def test_a_slow_product_is_timed_twice_as_the_first_loads_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, product = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda *args, **options: (calls.append(args), product(*args, **options)))
    precision.peak(CPU, "fp32", 64)
    assert len(calls) == precision.TRIALS
    monkeypatch.setattr(precision, "MAX_TRIALS_S", 0.0)
    precision.peak(CPU, "fp32", 64)
    assert len(calls) == precision.TRIALS + 2


def test_auto_is_resolved_when_a_run_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_device(monkeypatch, 3.0)
    settings = RunConfig(precision="auto", gpus="none", threads=1, run_dir=str(tmp_path / "run"), tensorboard=False)
    with Run.start(Config(settings), recipe="test", stage="train", argv=[]) as run:
        assert run.config.run.precision == run.settings.precision == run.precision.name == "bf16"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["run"]["precision"] == "bf16"
    assert "3 GFLOP/s" in json.loads((tmp_path / "run" / "run.json").read_text())["choices"]["precision"]


def test_a_resume_keeps_the_chosen_precision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ["gpus=none", "threads=1", "tensorboard=false", "env_steps=600"]
    fake_device(monkeypatch, 3.0)
    assert main(["train", "gym", "precision=auto", f"run_dir={tmp_path / 'run'}", *options]) == 0
    fake_device(monkeypatch, 0.1)
    assert main(["train", "gym", f"resume={tmp_path / 'run'}", "env_steps=900"]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["run"]["precision"] == "bf16"
    assert "precision=auto" in json.loads((tmp_path / "run" / "run.json").read_text())["command"]
