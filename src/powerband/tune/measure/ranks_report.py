"""Ranks' report: passes the result of a profile from the leading rank to the process that started the ranks."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from powerband.core.ranks.launch import is_rank

REPORT_VARIABLE = "POWERBAND_PROFILE_REPORT"
"""Environment variable with the path of the report file."""


class RanksReport:
    """File through which the leading rank passes its profile to the process that started the ranks.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any] | None:
        """Returns {"text": printable profile, "table": profile as a JSON value}; None if no rank wrote the file."""
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else None


@contextlib.contextmanager
def ranks_report_file() -> Iterator[RanksReport]:
    """Context that yields the report file of a profile.

    The process that starts the ranks creates a temporary file and stores its path in the environment variable
    `REPORT_VARIABLE`. A rank takes the path from that variable.
    """
    if is_rank():
        yield RanksReport(Path(os.environ.get(REPORT_VARIABLE, "")))
        return
    with tempfile.TemporaryDirectory(prefix="powerband-profile-") as folder:
        path = Path(folder) / "report.json"
        os.environ[REPORT_VARIABLE] = str(path)
        try:
            yield RanksReport(path)
        finally:
            os.environ.pop(REPORT_VARIABLE, None)


def write_ranks_report(text: str, table: dict[str, Any]) -> bool:
    """Writes a profile to the report file for the process that started the ranks.

    Args:
        text: Printable profile.
        table: The same profile as a JSON value.

    Returns:
        False, without writing, if no process waits for a report.
    """
    path = os.environ.get(REPORT_VARIABLE)
    if not path:
        return False
    Path(path).write_text(json.dumps({"text": text, "table": table}), encoding="utf-8")
    return True
