"""Reproduces a published row: trains it with another seed, evaluates it, and compares it with the published figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from powerband.core.config.ranges import MAX_COUNT, FilePath, Range, check_ranges
from powerband.core.errors import ConfigError
from powerband.core.regular_files import read_object
from powerband.core.run_folder import PROCESSES
from powerband.results.published import Row, row_label

UNFINISHED = re.compile(r"SIG[A-Z0-9]+ |\w+: ")
"""Start of the reasons for an end that leave a training unfinished: a signal, or an error with its message."""


@dataclass(frozen=True)
@check_ranges
class ReproduceOptions:
    """Options of ``powerband reproduce``.

    Raises:
        ConfigError: A value is out of range.
    """

    seed: Annotated[int, Range(at_least=-1, at_most=MAX_COUNT)] = -1
    """Seed of the run; -1 takes the first one that none of the published runs had."""
    run_dir: FilePath = ""
    """Run folder; empty is runs/reproduce-ROW-SEED. An unfinished run in it is continued."""


def reproduce(row: Row, options: ReproduceOptions) -> dict[str, Any]:
    """Trains and evaluates a row, or continues and evaluates the run in its folder.

    Args:
        row: Published row.
        options: Seed and run folder.

    Returns:
        ``row``, ``seed``, ``run_dir`` and ``figures``: for each figure its ``label``, ``metric``, ``value``, the
        ``published`` values, ``low`` and ``high`` of the 95 % prediction interval of one run, and ``inside``.

    Raises:
        ConfigError: The training or the evaluation has failed; its own message stands above.
    """
    seed = options.seed if options.seed >= 0 else max(row.seeds) + 1
    folder = Path(options.run_dir or f"runs/reproduce-{row.name}-{seed}")
    _refuse_other_run(folder, row, seed)
    if not _is_trained(folder):
        if (folder / "checkpoints" / "last").exists():
            _powerband("train", row.train[0], f"resume={folder}")
        else:
            _powerband("train", *row.train, f"seed={seed}", f"run_dir={folder}")
    with TemporaryDirectory(prefix="powerband-reproduce-") as scratch:
        file = Path(scratch) / "evaluation.json"
        _powerband("eval", str(folder), *row.evaluate, "--json", str(file))
        evaluated = {row_label(part): part for part in json.loads(file.read_text(encoding="utf-8"))}
    figures = []
    for figure in row.figures:
        value = float(evaluated[figure.label][figure.metric])
        low, high = figure.prediction_interval()
        figures.append(
            {
                "label": figure.label,
                "metric": figure.metric,
                "value": value,
                "published": list(figure.values),
                "low": low,
                "high": high,
                "inside": low <= value <= high,
            }
        )
    return {"row": row.name, "seed": seed, "run_dir": str(folder), "figures": figures}


def _refuse_other_run(folder: Path, row: Row, seed: int) -> None:
    """Refuses a folder with a run of another recipe or seed, whose figures would be stated as those of this row."""
    if not (folder / "run.json").exists():
        return
    recipe = read_object(folder / "run.json").get("recipe")
    settings = read_object(folder / "config.json").get("run")
    trained = settings.get("seed") if isinstance(settings, dict) else None
    if (recipe, trained) != (row.train[0], seed):
        raise ConfigError(
            f"run_dir={folder} contains a run of {recipe} with seed {trained}, but {row.name} with seed={seed} is to "
            f"be trained. Write seed={trained} if this is its run, or name another run_dir."
        )


def _is_trained(folder: Path) -> bool:
    """Returns whether the training in a run folder has reached its end. A signal leaves a policy too."""
    ended = read_object(folder / PROCESSES).get("ended")
    return (folder / "policy").exists() and isinstance(ended, str) and not UNFINISHED.match(ended)


def _powerband(*arguments: str) -> None:
    """Runs one command, whose output goes to this terminal.

    Raises:
        ConfigError: The command has failed.
        KeyboardInterrupt: Ctrl-C has ended both commands, after a training has saved its run.
    """
    command = [sys.executable, "-P", "-m", "powerband", *arguments]
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C has reached the command too, which saves its run and ends
        raise
    if status:
        raise ConfigError(
            f"powerband {arguments[0]} ended with status {status}. Repair what its message names, and repeat the "
            f"command, which continues the run."
        )
