"""Ranks' report: what the leading rank of a profile hands to the process that started the ranks."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from powerband.core.launch import is_rank

REPORT = "POWERBAND_PROFILE_REPORT"
"""Environment variable: where the leading rank leaves its report."""


class RanksReport:
    """Where the leading rank leaves its profile for the process that starts the ranks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any] | None:
        """``text`` and ``table`` of the profile; None where no rank got that far."""
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else None


@contextlib.contextmanager
def report_of_ranks() -> Iterator[RanksReport]:
    """Names a place for the ranks' report in their environment, unless this process is a rank itself."""
    if is_rank():
        yield RanksReport(Path(os.environ.get(REPORT, "")))
        return
    with tempfile.TemporaryDirectory(prefix="powerband-profile-") as folder:
        path = Path(folder) / "report.json"
        os.environ[REPORT] = str(path)
        try:
            yield RanksReport(path)
        finally:
            os.environ.pop(REPORT, None)


def leave_report(text: str, table: dict[str, Any]) -> bool:
    """Leaves a profile for the process that started this rank; False where nobody waits for one."""
    path = os.environ.get(REPORT)
    if not path:
        return False
    Path(path).write_text(json.dumps({"text": text, "table": table}), encoding="utf-8")
    return True
