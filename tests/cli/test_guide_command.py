"""``powerband audit GUIDE.md`` on the command line: output, JSON, errors, and one real measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from powerband.cli.main import main

GUIDE = "# snakes\n\n```bash\npython main.py --update_interval 10\n```\n\n- `update_interval=10` makes fewer updates.\n"


@pytest.fixture
def guide(tmp_path: Path) -> Path:
    path = tmp_path / "guide.md"
    path.write_text(GUIDE, encoding="utf-8")
    return path


def test_the_guide_is_printed_with_its_results(guide: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(guide), "seconds=0"]) == 0
    written = capsys.readouterr().out
    assert written.startswith(GUIDE.rstrip())
    assert "  > powerband: not measurable here: measurement is off (seconds=0)" in written


def test_json_needs_no_measurement(guide: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(guide), "seconds=0", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["recipe"] == "snakes"
    claim = result["claims"][0]
    assert (claim["line"], claim["option"], claim["verdict"]) == (7, "update_interval", "not-measurable")
    assert result["commands"][0]["status"] == "notice"


def test_files_take_the_guide_and_the_json(guide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, table = tmp_path / "new" / "out.md", tmp_path / "claims.json"
    assert main(["audit", str(guide), "seconds=0", "--out", str(out), "--json", str(table)]) == 0
    assert capsys.readouterr().out == ""
    assert out.read_text(encoding="utf-8").startswith(GUIDE.rstrip())
    assert len(json.loads(table.read_text())["claims"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recipe=snake"], "Did you mean 'snakes'"),
        (["seconds=-1"], "seconds"),
        (["second=1"], "unknown option 'second'"),
    ],
)
def test_invalid_options_are_refused(
    guide: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(guide), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (" \n", "is empty"),
        (None, "cannot be read"),
        ("# Cooking\n", "Write recipe=NAME"),
        ("x" * 10**7, "at most 2 MiB"),
    ],
)
def test_a_file_that_is_no_guide_is_refused(
    tmp_path: Path, content: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "guide.md"
    if content is not None:
        path.write_text(content)
    assert main(["audit", str(path), "seconds=0"]) == 2
    assert message in capsys.readouterr().err


def test_help_names_both_uses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--help"]) == 0
    written = capsys.readouterr().out
    assert "-- python train.py" in written and "GUIDE.md" in written


@pytest.mark.slow
def test_runs_of_the_recipe_decide_a_claim(guide: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The guide promises fewer updates; the runs make one update per step either way, and one pair shows it."""
    assert main(["audit", str(guide), "seconds=250", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    claim = result["claims"][0]
    assert claim["verdict"] == "no-effect", claim
    assert claim["comparison"]["pairs"] >= 1 and result["runs"] >= 3
    assert claim["comparison"]["runs_after"][0]["updates"] > 0
