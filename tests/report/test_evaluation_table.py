"""The table of an evaluation is JSON also if a value is not finite."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from powerband.report.evaluation_table import result_path, write_table


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


def test_the_result_of_a_removed_checkpoint_is_kept_in_the_run_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints").mkdir()
    write_table(tmp_path / "checkpoints" / "4000", "episodes", Options(), [{"return": 3.5}])
    stored = json.loads((tmp_path / "eval-episodes-4000.json").read_text())
    assert stored["rows"] == [{"return": 3.5}] and not list((tmp_path / "checkpoints").iterdir())
    assert f"The result is in {tmp_path / 'eval-episodes-4000.json'}" in capsys.readouterr().err


def test_images_of_a_removed_checkpoint_do_not_create_its_folder_again(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "4000"
    checkpoint.mkdir(parents=True)
    assert result_path(checkpoint, "videos/episode.mp4") == checkpoint / "videos" / "episode.mp4"
    checkpoint.rmdir()
    assert result_path(checkpoint, "videos/episode.mp4") == tmp_path / "videos" / "episode-4000.mp4"
    assert result_path(checkpoint, "videos/episode") == tmp_path / "videos" / "episode-4000"
    assert result_path(tmp_path, "mission.png") == tmp_path / "mission.png"


def test_a_table_that_cannot_be_saved_is_returned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_table(tmp_path / "gone" / "too" / "deep", "episodes", Options(), [{"return": float("nan")}])
    assert rows == [{"return": None}]
    assert "the result could not be saved in" in capsys.readouterr().err
