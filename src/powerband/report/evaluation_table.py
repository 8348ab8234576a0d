"""Evaluation table: the rows of ``powerband eval`` as a JSON file in the run folder, which the report shows."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_table(folder: Path, name: str, options: Any, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Writes the result of an evaluation to ``eval-NAME.json``.

    If the run has removed the checkpoint since the evaluation began, the file is ``eval-NAME-STEPS.json`` in the run
    folder; see `result_path`.

    Args:
        folder: Run folder, or the folder of one of its checkpoints.
        name: Name of the table, such as ``episodes``.
        options: Options of the evaluation, a dataclass.
        rows: Rows of the table.

    Returns:
        The rows as in the file: None stands for NaN, which is the bound of an interval of one episode, and the text
        "inf" for infinity.
    """
    path = result_path(folder, f"eval-{name}.json")
    if path.parent != folder:
        print(f"powerband: the run has removed the evaluated checkpoint. The result is in {path}.", file=sys.stderr)
    table = _json_values({"options": vars(options), "rows": rows})
    try:
        path.write_text(json.dumps(table, indent=2, allow_nan=False), encoding="utf-8")
    except OSError as error:  # --json still receives the rows
        print(f"powerband: the result could not be saved in {path} ({error.strerror}).", file=sys.stderr)
    return table["rows"]


def result_path(folder: Path, name: str) -> Path:
    """Returns the path of a result of an evaluation, such as a table, an image or a video.

    A run in progress may have removed the checkpoint since the evaluation began. The path is then in the run folder,
    and the steps of the checkpoint are added to its name, so that the result is not lost.

    Args:
        folder: Run folder, or the folder of one of its checkpoints.
        name: Path of the result relative to `folder`, such as ``videos/episode.mp4``.
    """
    run_dir = folder.parent.parent
    if folder.exists() or not run_dir.exists():
        return folder / name
    path = run_dir / name
    return path.with_stem(f"{path.stem}-{folder.name}")


def _json_values(value: Any) -> Any:
    """Returns nested dicts, lists and tuples without the numbers that JSON does not have; tuples become lists."""
    if isinstance(value, dict):
        return {name: _json_values(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_values(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
