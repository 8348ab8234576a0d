"""Apart: a short run in processes of its own, for settings with several ranks, which cannot start in this one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from powerband.core.config import ConfigError, to_json
from powerband.tune.facts import Facts
from powerband.tune.ledger import Ledger
from powerband.tune.measure import Measurement, Recipe, measure

PATIENCE_S = 120.0
"""Beyond its window, a run apart may take this long: starting, compiling, ending."""


def short_run(recipe: Recipe, stage: str, config: Any, seconds: float, probe: bool = True) -> Measurement | None:
    """As `measure`: in this process, or with several ranks in processes of their own."""
    if config.run.nproc > 1:
        return measure_apart(recipe, stage, config, seconds)
    return measure(recipe, stage, config, seconds, probe)


def measure_apart(recipe: Recipe, stage: str, config: Any, seconds: float) -> Measurement | None:
    """As `measure` without its probes, through ``powerband profile`` in a process that starts the ranks.

    Returns:
        None where nothing could be measured.

    Raises:
        ConfigError: The ranks failed.
    """
    with tempfile.TemporaryDirectory(prefix="powerband-tune-") as folder:
        settings, found = Path(folder) / "config.yaml", Path(folder) / "found.json"
        settings.write_text(to_json(config), encoding="utf-8")  # JSON is YAML
        name = recipe.__name__.rpartition(".")[2]
        words = [
            "profile",
            name,
            stage,
            "--config",
            str(settings),
            f"seconds={seconds:g}",
            "probe=false",
            f"--json={found}",
        ]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "powerband", *words],
                capture_output=True,
                text=True,
                timeout=seconds + PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            return None
        if not found.exists():
            said = " ".join(done.stderr.strip().splitlines()[-2:])[-400:]
            if "out of memory" in said:
                raise MemoryError(said)
            raise ConfigError(f"nproc={config.run.nproc} ended with status {done.returncode}: {said}")
        table = json.loads(found.read_text(encoding="utf-8"))
    ranks = table["ranks"]
    return Measurement(
        [Ledger.from_dict(rank["ledger"]) for rank in ranks], [Facts.from_dict(rank["facts"]) for rank in ranks], True
    )
