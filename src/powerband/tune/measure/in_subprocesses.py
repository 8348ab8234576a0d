"""Measurement in new processes: a short run with several ranks, which cannot start in this process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from powerband.core.config import to_json
from powerband.core.errors import ConfigError, Interrupted
from powerband.core.machine.device import thread_environment
from powerband.core.ranks.subprocesses import kill_session, start_ranks, wait_for_ranks
from powerband.core.recipe import Recipe
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.in_process import Measurement, measure
from powerband.tune.measure.ledger import Ledger
from powerband.tune.measure.ranks_report import REPORT_VARIABLE, RanksReport

STARTUP_TIMEOUT_S = 120.0
"""Seconds that the ranks may take in addition to their window, for starting, compiling and ending."""


def short_run(recipe: Recipe, stage: str, config: Any, seconds: float, probe: bool = True) -> Measurement | None:
    """Measures a run in this process, or in new processes if it has several ranks.

    Args:
        recipe: Recipe to run.
        stage: Name of the stage (function of the recipe) to run, such as ``train``.
        config: Configuration of the run.
        seconds: Length of the measured window.
        probe: Also time single updates, with several batch sizes, after the window; ignored with several ranks.

    Returns:
        The measurement, or None if the run ended before anything was measured.

    Raises:
        Interrupted: A signal ended the run, so that its rates are not those of the setting.
    """
    if config.run.nproc > 1:
        return measure_in_subprocesses(recipe, stage, config, seconds)
    measured = measure(recipe, stage, config, seconds, probe)
    if measured is not None and measured.interrupted:
        raise Interrupted(measured.interrupted)
    return measured


def measure_in_subprocesses(
    recipe: Recipe, stage: str, config: Any, seconds: float, startup_s: float = STARTUP_TIMEOUT_S
) -> Measurement | None:
    """Measures a run with ``powerband profile`` in one new process per rank, without timing single updates.

    Args:
        recipe: Recipe to run.
        stage: Name of the stage (function of the recipe) to run, such as ``train``.
        config: Configuration of the run.
        seconds: Length of the measured window.
        startup_s: Seconds that the ranks may take in addition to their window.

    Returns:
        The measurement, or None if nothing was measured.

    Raises:
        ConfigError: A rank failed.
        MemoryError: A rank ran out of memory.
    """
    ranks, threads = config.run.nproc, config.run.threads
    with tempfile.TemporaryDirectory(prefix="powerband-tune-") as folder:
        settings, report_file = Path(folder) / "config.yaml", RanksReport(Path(folder) / "report.json")
        settings.write_text(to_json(config), encoding="utf-8")  # JSON is YAML
        arguments = ["-m", "powerband", "profile", recipe.name, stage, f"--config={settings}", f"seconds={seconds:g}"]
        outputs = [Path(folder) / f"rank{rank}.txt" for rank in range(ranks)]
        environment = {**thread_environment(threads, ranks), REPORT_VARIABLE: str(report_file.path)}
        processes = start_ranks([[*arguments, "probe=false"]] * ranks, outputs, environment)
        try:
            problem = wait_for_ranks(processes, seconds + startup_s, lambda rank: _last_output(outputs[rank]))
        finally:
            for process in processes:
                kill_session(process)
        if problem:
            output = " ".join(map(_last_output, outputs))
            if "out of memory" in output:
                raise MemoryError(output)
            raise ConfigError(f"nproc={ranks}: {problem}")
        report = report_file.read()
    if report is None:
        return None
    rows = report["table"]["ranks"]
    ledgers = [Ledger.from_dict(row["ledger"]) for row in rows]
    return Measurement(ledgers, [WindowFacts.from_dict(row["facts"]) for row in rows], leads=True)


def _last_output(output: Path) -> str:
    """Quotes the last two lines that a rank printed."""
    return f"printing '{' '.join(output.read_text(errors='replace').strip().splitlines()[-2:])[-400:]}'"
