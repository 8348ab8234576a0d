"""The table of an evaluation is JSON also if a value is not finite."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from powerband.report.evaluation_table import write_table


@dataclass
class Options:
    episodes: int = 1
    ranges: tuple[float, ...] = (15.0, math.inf)


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_the_file_and_the_rows_have_no_numbers_that_json_lacks(tmp_path: Path) -> None:
    rows = [{"policy": "random", "return": 3.5, "interval": (math.nan, math.inf), "solved": True, "count": 2}]
    written = write_table(tmp_path, "episodes", Options(), rows)
    stored = json.loads((tmp_path / "eval-episodes.json").read_text(), parse_constant=refuse)
    assert stored == {"options": {"episodes": 1, "ranges": [15.0, "inf"]}, "rows": written}
    assert written == [{"policy": "random", "return": 3.5, "interval": [None, "inf"], "solved": True, "count": 2}]
