"""Apart: a short run in processes of its own, for settings with several ranks, which cannot start in this one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from powerband.core.children import end, start_ranks, watch_ranks
from powerband.core.config import ConfigError, to_json
from powerband.core.device import thread_environment
from powerband.tune.facts import Facts
from powerband.tune.ledger import Ledger
from powerband.tune.measure import Measurement, Recipe, measure
from powerband.tune.ranks_report import REPORT, RanksReport

PATIENCE_S = 120.0
"""Beyond its window, a run apart may take this long: starting, compiling, ending."""


def short_run(recipe: Recipe, stage: str, config: Any, seconds: float, probe: bool = True) -> Measurement | None:
    """As `measure`: in this process, or with several ranks in processes of their own."""
    if config.run.nproc > 1:
        return measure_apart(recipe, stage, config, seconds)
    return measure(recipe, stage, config, seconds, probe)


def measure_apart(recipe: Recipe, stage: str, config: Any, seconds: float) -> Measurement | None:
    """As `measure` without its probes, through ``powerband profile`` in ranks that are started here.

    Returns:
        None where nothing could be measured.

    Raises:
        ConfigError: The ranks failed.
    """
    ranks, threads = config.run.nproc, config.run.threads
    with tempfile.TemporaryDirectory(prefix="powerband-tune-") as folder:
        settings, report = Path(folder) / "config.yaml", RanksReport(Path(folder) / "report.json")
        settings.write_text(to_json(config), encoding="utf-8")  # JSON is YAML
        name = recipe.__name__.rpartition(".")[2]
        words = ["-m", "powerband", "profile", name, stage, f"--config={settings}", f"seconds={seconds:g}"]
        outputs = [Path(folder) / f"rank{rank}.txt" for rank in range(ranks)]
        environment = {**thread_environment(threads, ranks), REPORT: str(report.path)}
        processes = start_ranks([[*words, "probe=false"]] * ranks, outputs, environment)
        try:
            problem = watch_ranks(processes, seconds + PATIENCE_S, lambda rank: _said(outputs[rank]))
        finally:
            for process in processes:
                end(process)
        if problem:
            said = " ".join(map(_said, outputs))
            if "out of memory" in said:
                raise MemoryError(said)
            raise ConfigError(f"nproc={ranks}: {problem}")
        found = report.read()
    if found is None:
        return None
    table = found["table"]
    return Measurement(
        [Ledger.from_dict(rank["ledger"]) for rank in table["ranks"]],
        [Facts.from_dict(rank["facts"]) for rank in table["ranks"]],
        True,
    )


def _said(output: Path) -> str:
    """The end of what a rank printed."""
    return f"saying '{' '.join(output.read_text(errors='replace').strip().splitlines()[-2:])[-400:]}'"
