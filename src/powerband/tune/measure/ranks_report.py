"""Ranks' report: a file in which the leading rank of a profile leaves its result for the process that started it."""

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
"""Environment variable with the path of the report."""


class RanksReport:
    """The report as seen by the process that starts the ranks.

    Args:
        path: Path of the report.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any] | None:
        """Returns the ``text`` and the ``table`` of the profile; None if no rank wrote them."""
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else None


@contextlib.contextmanager
def ranks_report_file() -> Iterator[RanksReport]:
    """Passes the path of a temporary report to the ranks by `REPORT_VARIABLE`; in a rank it reads that variable."""
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
    """Writes a profile for the process that started this rank; returns False if no process expects one."""
    path = os.environ.get(REPORT_VARIABLE)
    if not path:
        return False
    Path(path).write_text(json.dumps({"text": text, "table": table}), encoding="utf-8")
    return True
