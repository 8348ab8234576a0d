"""Tests of the checkup: a failing check does not stop the others; table, JSON, exit status and arguments."""

from __future__ import annotations

import importlib.util
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
from powerband.cli import main as cli
from powerband.doctor import checkup
from powerband.doctor.check_result import fail, ok, skipped, warn
from powerband.doctor.checks.simulators import SIMULATORS
from powerband.doctor.context import CheckContext

ROW = {"section", "name", "status", "measured", "advice", "figures", "seconds"}
TOP = {"powerband", "sections", "rows", "summary", "seconds", "exit_code"}


def add_section(monkeypatch: pytest.MonkeyPatch, name: str, checks: Any) -> None:
    module = types.ModuleType(f"powerband.doctor.checks.{name}")
    vars(module)["checks"] = checks
    monkeypatch.setitem(sys.modules, f"powerband.doctor.checks.{name}", module)


def broken_check() -> None:
    raise KeyError("broken check")


def test_a_check_that_raises_becomes_a_row_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    add_section(
        monkeypatch, "one", lambda context: [("bad", broken_check), ("good", lambda: ok("good", "3 GB/s", rate_gb_s=3))]
    )
    add_section(monkeypatch, "two", lambda context: broken_check())
    add_section(monkeypatch, "three", lambda context: [("both", lambda: [ok("a", ""), warn("b", "slow", "Do more.")])])
    out = io.StringIO()
    report = checkup.checkup(["one", "two", "three"], CheckContext(), out=out)
    assert [(row["section"], row["name"], row["status"]) for row in report["rows"]] == [
        ("one", "bad", "fail"),
        ("one", "good", "ok"),
        ("two", "two", "fail"),
        ("three", "a", "ok"),
        ("three", "b", "warn"),
    ]
    assert report["summary"] == {"ok": 2, "warn": 1, "fail": 2, "skipped": 0} and report["exit_code"] == 1
    assert "KeyError: 'broken check'" in out.getvalue()
    assert out.getvalue().splitlines()[-1].startswith("2 ok, 1 warn, 2 fail in")


def test_the_table_is_aligned_and_shows_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_progress_line_names_the_check_and_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    add_section(
        monkeypatch, "one", lambda context: [("first", lambda: ok("first", "")), ("next", lambda: ok("next", ""))]
    )
    progress = io.StringIO()
    checkup.checkup(["one"], CheckContext(), out=None, progress=progress)
    assert "one: next (2 of 2) ..." in progress.getvalue() and progress.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["doctor", "rendring"], ["'rendring'", "Did you mean 'rendering'", "accelerator"]),
        (["doctor", "--fast"], ["'--fast'", "section of doctor"]),
    ],
)
def test_unknown_arguments_are_one_line_and_status_2(arguments: list[str], parts: list[str], capsys: Any) -> None:
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and all(part in printed.err for part in parts)


def test_help_lists_the_sections_without_importing_torch() -> None:
    code = (
        "import sys; from powerband.cli.main import main; main(['doctor', '--help']); assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(powerband.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f"\n  {name} " in done.stdout for name in checkup.SECTIONS)


def test_the_command_exits_with_status_1_if_a_check_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_section(monkeypatch, "host", lambda context: [("disk", lambda: fail("disk", "full", "Free space."))])
    target = tmp_path / "doctor.json"
    assert cli.main(["doctor", "host", "--json", str(target)]) == 1
    assert json.loads(target.read_text())["exit_code"] == 1


def test_sections_run_once_in_their_usual_order(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name in ("host", "copies"):
        add_section(monkeypatch, name, lambda context: [("x", lambda: ok("x", ""))])
    assert cli.main(["doctor", "--json", "host", "copies", "host"]) == 0
    assert json.loads(capsys.readouterr().out)["sections"] == ["copies", "host"]


SMALL_UPDATES = """
import sys
import timeit
from dataclasses import replace
from powerband.cli import main as cli
from powerband.doctor.checks import recipes
from powerband.loops.config import OfflineConfig, OffPolicyConfig, OnPolicyConfig

def build_small(reference, load_object=recipes.load_object):
    build = load_object(reference)
    def small(config, context):
        if "chunks" in vars(config):
            net = replace(config.net, width=16, channels=0.25, blocks=0.25)
            config = replace(config, chunks=replace(config.chunks, unet=(8, 16), sample_steps=2), net=net)
        return build(config, context)
    return small

for kind in (OfflineConfig, OffPolicyConfig, OnPolicyConfig):
    rows = kind.update_rows.fget
    kind.update_rows = property(lambda self, rows=rows: min(rows(self), 4))
recipes.load_object = build_small
recipes.seconds_per_call = lambda call, device: timeit.timeit(call, number=1)
raise SystemExit(cli.main(sys.argv[1:]))
"""
"""The command with updates of four rows, each timed once, and small networks of sketchnav: its own take a minute."""


@pytest.fixture(scope="module")
def this_machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """JSON and output of ``powerband doctor`` with all sections on the machine of the tests."""
    folder = tmp_path_factory.mktemp("doctor")
    environment = {**os.environ, "PYTHONPATH": str(Path(powerband.__file__).parents[1]), "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-c", SMALL_UPDATES, "doctor", "--json", str(folder / "doctor.json")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads((folder / "doctor.json").read_text())
    return {**report, "printed": done.stdout, "status": done.returncode}


@pytest.mark.slow
def test_every_section_reports_on_this_machine(this_machine: dict[str, Any]) -> None:
    assert this_machine["sections"] == list(checkup.SECTIONS)
    assert {row["section"] for row in this_machine["rows"]} == set(checkup.SECTIONS)
    crashed = [row for row in this_machine["rows"] if "the check itself failed" in row["measured"]]
    assert crashed == []
    assert this_machine["status"] == this_machine["exit_code"] == int(this_machine["summary"]["fail"] > 0)
    lines = this_machine["printed"].splitlines()
    assert all(name in lines for name in checkup.SECTIONS) and lines[-1].endswith(".")


@pytest.mark.slow
def test_the_json_has_the_documented_keys(this_machine: dict[str, Any]) -> None:
    assert set(this_machine) - {"printed", "status"} == TOP
    for row in this_machine["rows"]:
        assert set(row) == ROW and row["status"] in checkup.STATUSES
        assert row["advice"] or row["status"] in ("ok", "skipped"), row
        assert "\n" not in row["measured"] and len(row["advice"]) < 400


@pytest.mark.slow
def test_measurements_are_plausible_numbers(this_machine: dict[str, Any]) -> None:
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


@pytest.mark.slow
def test_every_installed_simulator_steps(this_machine: dict[str, Any]) -> None:
    for row in (row for row in this_machine["rows"] if row["section"] == "simulators"):
        if importlib.util.find_spec(SIMULATORS[row["name"]].module) is None:
            assert row["status"] == "skipped", row
        else:
            assert row["status"] == "ok", row
            assert row["name"] == "libero" or row["figures"]["steps_per_s"] > 10
