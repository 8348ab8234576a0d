"""The score of the benchmark of planted options: what is missing counts as wrong."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the benchmark."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks" / "attach"))
    import audit_planted  # type: ignore[import-not-found]

    return audit_planted


def results(planted: ModuleType, changed: dict[str, Any]) -> dict[str, Any]:
    """The score of scripts with right verdicts, except those of the first script that `changed` replaces."""
    scripts, found = planted.draw_scripts(1), []
    for script in scripts:
        truths = {**dict.fromkeys(script.works, "works"), **script.dead}
        rows = [
            {"option": name, "truth": truth, "verdict": "works" if truth == "works" else "no-effect"}
            for name, truth in truths.items()
        ]
        found.append({"parser": script.parser, "options": rows, "missing": []})
    found[0] |= changed
    score: dict[str, Any] = planted.score_of(scripts, found)
    return score


def test_right_verdicts_pass(planted: ModuleType) -> None:
    score = results(planted, {})
    assert score["passed"] and (score["dead_found"], score["working_found"], score["missing"]) == (30, 30, 0)


def test_a_missing_option_and_a_failed_script_are_wrong(planted: ModuleType) -> None:
    names = [*planted.draw_scripts(1)[0].works, *planted.draw_scripts(1)[0].dead]
    score = results(planted, {"options": [], "missing": names, "failed": "KeyError"})
    assert not score["passed"] and (score["dead"], score["working"], score["missing"]) == (30, 30, 10)
    assert not results(planted, {"missing": names[:1]})["passed"]


def test_a_working_option_called_dead_is_wrong(planted: ModuleType) -> None:
    row = {"option": "lr", "truth": "works", "verdict": "never-read"}
    assert not results(planted, {"options": [row]})["passed"]
