"""The scripts in ``examples/attach`` under ``powerband profile``: their cause, and where it is in their code."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "attach"
pytestmark = pytest.mark.slow


def profiled(script: str, folder: Path, *words: str) -> dict:
    """Profiles an example for some seconds and returns the JSON object."""
    report = folder / "profile.json"
    command = [sys.executable, "-m", "powerband", "profile", "seconds=5", f"--json={report}", "--", sys.executable]
    done = subprocess.run(
        [*command, str(EXAMPLES / script), *words], cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(report.read_text())


@pytest.mark.parametrize(
    ("script", "package"), [("hf_trainer.py", "transformers"), ("lightning_module.py", "pytorch_lightning")]
)
def test_a_loader_without_workers_is_the_cause(script: str, package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    profile = profiled(script, tmp_path)
    assert profile["cause"] == "data-wait" and profile["failures"] == []
    assert profile["ledger"]["data_wait"] > 0.6 * profile["wall_s"]
    assert any("slow_rows.py" in str(line) for line in profile["lines"])


def test_stable_baselines3_spends_its_time_in_updates_of_small_batches(tmp_path: Path) -> None:
    profile = profiled("sb3_ppo.py", tmp_path)
    ledger, wall_s = profile["ledger"], profile["wall_s"]
    assert profile["cause"] in ("small-batch", "update-bound")  # about the half of an update launches operations
    assert ledger["update"] > 0.4 * wall_s and ledger["env_wait"] > 0
    assert len(profile["processes"]) >= 5 and profile["failures"] == []
