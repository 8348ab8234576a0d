"""The checkup as a whole: one check that fails stops no other, the table and the JSON, the exit status, the words."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import powerband
from powerband import cli
from powerband.doctor import checkup
from powerband.doctor.row import fail, ok, skipped, warn
from powerband.doctor.scope import Scope

ROW = {"section", "name", "status", "measured", "advice", "figures", "seconds"}
TOP = {"powerband", "sections", "rows", "summary", "seconds", "exit_code"}


def section(monkeypatch: pytest.MonkeyPatch, name: str, checks: Any) -> None:
    module = types.ModuleType(f"powerband.doctor.{name}")
    module.checks = checks
    monkeypatch.setitem(sys.modules, f"powerband.doctor.{name}", module)


def raising() -> None:
    raise KeyError("a check with a fault")


def test_a_check_that_raises_is_a_row_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    section(monkeypatch, "one", lambda scope: [("bad", raising), ("good", lambda: ok("good", "3 GB/s", rate_gb_s=3))])
    section(monkeypatch, "two", lambda scope: raising())
    section(monkeypatch, "three", lambda scope: [("both", lambda: [ok("a", ""), warn("b", "slow", "Do more.")])])
    out = io.StringIO()
    found = checkup.checkup(["one", "two", "three"], Scope(), out=out)
    assert [(row["section"], row["name"], row["status"]) for row in found["rows"]] == [
        ("one", "bad", "fail"),
        ("one", "good", "ok"),
        ("two", "two", "fail"),
        ("three", "a", "ok"),
        ("three", "b", "warn"),
    ]
    assert found["summary"] == {"ok": 2, "warn": 1, "fail": 2, "skipped": 0} and found["exit_code"] == 1
    assert "KeyError: 'a check with a fault'" in out.getvalue()
    assert out.getvalue().splitlines()[-1].startswith("2 ok, 1 warn, 2 fail in")


def test_the_table_is_aligned_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "words " * 30
    rows = [ok("a", "1 GB/s"), fail("longer", long, "Do this."), skipped("b", "not here", "Write that.")]
    lines = checkup.table("section", rows).splitlines()
    assert lines[1:3] == ["section", "  a       ok       1 GB/s"]
    assert lines[3].startswith("  longer  fail     words") and all(len(line) <= 80 for line in lines)
    assert "                   -> Do this." in lines
    assert lines[-1] == "  b       skipped  not here. Write that."
    coloured = checkup.table("section", rows, colour=True)
    assert "\x1b[31mfail" in coloured


def test_progress_names_the_check_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    section(monkeypatch, "one", lambda scope: [("first", lambda: ok("first", "")), ("next", lambda: ok("next", ""))])
    progress = io.StringIO()
    checkup.checkup(["one"], Scope(), out=None, progress=progress)
    assert "one: next (2 of 2) ..." in progress.getvalue() and progress.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["doctor", "rendring"], ["'rendring'", "Did you mean rendering", "accelerator"]),
        (["doctor", "--fast"], ["'--fast'", "section of doctor"]),
    ],
)
def test_bad_words_are_one_line_and_status_2(words: list[str], parts: list[str], capsys: Any) -> None:
    assert cli.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and all(part in printed.err for part in parts)


def test_help_names_the_sections_without_measuring_or_torch() -> None:
    code = "import sys; from powerband import cli; cli.main(['doctor', '--help']); assert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": str(Path(powerband.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f"\n  {name} " in done.stdout for name in checkup.SECTIONS)


def test_a_failed_check_is_status_1_through_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    section(monkeypatch, "host", lambda scope: [("disk", lambda: fail("disk", "full", "Free space."))])
    target = tmp_path / "doctor.json"
    assert cli.main(["doctor", "host", "--json", str(target)]) == 1
    assert json.loads(target.read_text())["exit_code"] == 1


def test_sections_run_once_and_in_their_order(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name in ("host", "copies"):
        section(monkeypatch, name, lambda scope: [("x", lambda: ok("x", ""))])
    assert cli.main(["doctor", "--json", "host", "copies", "host"]) == 0
    assert json.loads(capsys.readouterr().out)["sections"] == ["copies", "host"]


@pytest.fixture(scope="module")
def this_machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything, through the real command, on the machine that the tests run on."""
    folder = tmp_path_factory.mktemp("doctor")
    environment = {**os.environ, "PYTHONPATH": str(Path(powerband.__file__).parents[1]), "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", "powerband", "doctor", "--json", str(folder / "doctor.json")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads((folder / "doctor.json").read_text())
    return {**found, "printed": done.stdout, "status": done.returncode}


def test_every_section_answers_on_this_machine(this_machine: dict[str, Any]) -> None:
    assert this_machine["sections"] == list(checkup.SECTIONS)
    assert {row["section"] for row in this_machine["rows"]} == set(checkup.SECTIONS)
    crashed = [row for row in this_machine["rows"] if "the check itself failed" in row["measured"]]
    assert crashed == []
    assert this_machine["status"] == this_machine["exit_code"] == int(this_machine["summary"]["fail"] > 0)
    lines = this_machine["printed"].splitlines()
    assert all(name in lines for name in checkup.SECTIONS) and lines[-1].endswith(".")


def test_the_json_has_the_stated_keys(this_machine: dict[str, Any]) -> None:
    assert set(this_machine) - {"printed", "status"} == TOP
    for row in this_machine["rows"]:
        assert set(row) == ROW and row["status"] in checkup.STATUSES
        assert row["advice"] or row["status"] in ("ok", "skipped"), row
        assert "\n" not in row["measured"] and len(row["advice"]) < 400


def test_what_is_measured_is_a_figure(this_machine: dict[str, Any]) -> None:
    rows = {(row["section"], row["name"]): row for row in this_machine["rows"]}
    cpu = rows["precision", "cpu fp32"]["figures"]
    assert 0.1 < cpu["small_gflops"] < 1e5
    assert 0.1 < rows["copies", "host memory"]["figures"]["one_thread_gb_s"] < 1e4
    gloo = rows["collectives", "gloo"]
    assert gloo["status"] in ("ok", "warn") and gloo["figures"]["latency_us"] > 1
    assert gloo["figures"]["sizes"][2]["bytes"] == 64 * 2**20
    assert rows["host", "cores"]["figures"]["machine"] == os.cpu_count()
    assert rows["simulators", "gymnasium"]["figures"]["steps_per_s"] > 100
    learners = [row for row in this_machine["rows"] if row["section"] == "recipes"]
    assert {"snakes ppo cpu", "snakes bicnet cpu", "gym sac cpu"} <= {row["name"] for row in learners}
    assert all(row["figures"]["update_ms"] > 0 for row in learners if row["status"] == "ok")
    assert sum(row["status"] == "ok" for row in learners) >= 5
