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

    A run in progress may have removed the checkpoint since the evaluation began. The file is then
    ``eval-NAME-STEPS.json`` in the run folder, so that the result is not lost.

    Args:
        folder: Run folder, or the folder of one of its checkpoints.
        name: Name of the table, such as ``episodes``.
        options: Options of the evaluation, a dataclass.
        rows: Rows of the table.

    Returns:
        The rows as in the file: None stands for NaN, which is the bound of an interval of one episode, and the text
        "inf" for infinity.
    """
    if not folder.exists() and folder.parent.parent.exists():
        name, folder = f"{name}-{folder.name}", folder.parent.parent
        file = folder / f"eval-{name}.json"
        print(f"powerband: the run has removed the evaluated checkpoint. The result is in {file}.", file=sys.stderr)
    table = _json_values({"options": vars(options), "rows": rows})
    (folder / f"eval-{name}.json").write_text(json.dumps(table, indent=2, allow_nan=False), encoding="utf-8")
    return table["rows"]


def _json_values(value: Any) -> Any:
    """Returns nested dicts, lists and tuples without the numbers that JSON does not have; tuples become lists."""
    if isinstance(value, dict):
        return {name: _json_values(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_values(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
