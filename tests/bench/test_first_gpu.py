"""The script for the first machine with a GPU: its dry run, and steps that fail, hang or lack a package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import powerband

ROOT = Path(powerband.__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import first_gpu

    return first_gpu


def run(script: ModuleType, tmp_path: Path, steps: Any = None, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and results of a dry run."""
    path = tmp_path / "gpu.json"
    arguments = ("--dry-run", "--json", str(path), *arguments)
    status = script.main(arguments) if steps is None else script.main(arguments, steps)
    result = json.loads(path.read_text())
    return status, {**result, "steps": {step["step"]: step for step in result["steps"]}}


def child(name: str, code: str, limit_s: float = 20.0, **options: Any) -> Any:
    """A step that runs `code`, in which `write(value)` writes the step's file."""
    from gpu.step import Figure, Step

    prelude = "import json, sys\ndef write(value): open(sys.argv[-1], 'w').write(json.dumps(value))\n"
    command = ("-c", prelude + code)
    figures = lambda result: (Figure(key, value, "s") for key, value in result.items())  # noqa: E731
    return Step(name, limit_s, command, command, **{"figures": figures, **options})


@pytest.mark.slow
def test_dry_run_measures_every_step(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(script, tmp_path)
    statuses = {name: step["status"] for name, step in result["steps"].items()}
    assert status == 0 and statuses.keys() == {step.name for step in script.STEPS}
    assert statuses.pop("sac compiled") == "skipped" and "needs CUDA" in result["steps"]["sac compiled"]["reason"]
    reasons = {name: (step["reason"], step["output"]) for name, step in result["steps"].items()}
    assert set(statuses.values()) == {"ok"}, reasons
    assert all(result["steps"][name]["figures"] for name in statuses)
    assert result["steps"]["tests"]["result"]["failed"] == 0 < result["steps"]["tests"]["result"]["skipped"]
    assert result["machine"]["host"]["gpus"] == [] and result["dry_run"] and result["python"] and result["date"]
    table = capsys.readouterr().out
    assert all(name in table for name in statuses) and "samples/s" in table and "goal 5,000" in table


def test_failing_and_hanging_steps_stop_no_other(script: ModuleType, tmp_path: Path) -> None:
    survivor = tmp_path / "survivor"
    hang = f"""
import subprocess, time
write({{"early": 1.5}})
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(survivor)!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    steps = (
        child("raises", "write({'early': 2.5}); raise RuntimeError('broken kernel')"),
        child("hangs", hang, limit_s=0.5),
        child("crashes", "import os; os.kill(os.getpid(), 11)"),
        child("writes nothing", ""),
        child("needs a package", "", needs=("json", "package_that_is_missing")),
        child("imports a package", "import package_that_is_missing.part"),
        child("writes half", "open(sys.argv[-1], 'w').write('{')"),
        child("fine", "write({'late': 3.5})"),
    )
    started = time.monotonic()
    status, result = run(script, tmp_path, steps)
    assert script.DRY_FACTOR * 0.5 == 2
    assert status == 1 and time.monotonic() - started < 20
    outcomes = {name: (step["status"], step["reason"]) for name, step in result["steps"].items()}
    assert outcomes == {
        "raises": ("failed", "exit status 1: RuntimeError: broken kernel"),
        "hangs": ("timeout", "not done after 2 s; last output: no output"),
        "crashes": ("failed", "died of SIGSEGV: no output"),
        "writes nothing": ("failed", "the step wrote no results"),
        "needs a package": ("skipped", "needs package_that_is_missing"),
        "imports a package": ("skipped", "needs package_that_is_missing"),
        "writes half": ("failed", "the step wrote no results"),
        "fine": ("ok", ""),
    }
    figures = {name: step["figures"][0]["value"] for name, step in result["steps"].items() if step["figures"]}
    assert figures == {"raises": 2.5, "hangs": 1.5, "fine": 3.5}
    stat = Path(f"/proc/{survivor.read_text()}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z", "the child of the hanging step runs on"


def test_results_are_written_after_each_step(script: ModuleType, tmp_path: Path) -> None:
    look = f"write({{'steps so far': len(json.load(open({str(tmp_path / 'gpu.json')!r}))['steps'])}})"
    _, result = run(script, tmp_path, (child("first", "write({})"), child("second", look)))
    assert result["steps"]["second"]["figures"][0]["value"] == 1


def test_figures_before_a_missing_one_are_kept(script: ModuleType, tmp_path: Path) -> None:
    from gpu.steps import rdt_figures

    ledger = {"model": "rdt-1b", "samples_per_s_cached": 110.0, "samples_per_s_encoded": 50.0}
    steps = (child("rdt", f"write({{'ledgers': [{ledger}], 'rows': []}})", figures=rdt_figures),)
    _, result = run(script, tmp_path, steps)
    assert [each["value"] for each in result["steps"]["rdt"]["figures"]] == [110.0, 50.0]
    assert result["steps"]["rdt"]["status"] == "failed" and "mfu" in result["steps"]["rdt"]["reason"]


def test_some_steps_replace_their_results_in_an_existing_file(script: ModuleType, tmp_path: Path) -> None:
    steps = [child("a", "write({'seconds': 1})"), child("b", "write({'seconds': 2})")]
    run(script, tmp_path, steps)
    steps[0] = child("a", "write({'seconds': 3})")
    _, result = run(script, tmp_path, steps, "--only", "a")
    figures = {name: step["figures"][0]["value"] for name, step in result["steps"].items()}
    assert figures == {"a": 3, "b": 2} and all(step["commit"] and step["date"] for step in result["steps"].values())


def test_limits_fit_into_nine_minutes(script: ModuleType) -> None:
    from gpu.steps import wheels_step

    steps = [wheels_step("wheels", "packages"), *script.STEPS]
    assert sum(step.limit_s for step in steps) <= script.TOTAL_S == 540


def test_wheels_are_installed_without_a_network(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    monkeypatch.setattr(script, "PACKAGES", tmp_path / "packages")
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "tiny_package_of_a_test-1.0-py3-none-any.whl", "w") as wheel:
        info = "tiny_package_of_a_test-1.0.dist-info"
        wheel.writestr("tiny_package_of_a_test.py", "VALUE = 7.0\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny_package_of_a_test\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    code = "import tiny_package_of_a_test; write({'value': tiny_package_of_a_test.VALUE})"
    step = child("uses it", code, needs=("tiny_package_of_a_test",))
    assert run(script, tmp_path, (step,))[1]["steps"]["uses it"]["status"] == "skipped"
    _, result = run(script, tmp_path, (step,), "--wheels", str(tmp_path / "wheels"))
    assert result["steps"]["wheels"]["status"] == "ok", result["steps"]["wheels"]
    assert result["steps"]["uses it"]["figures"][0]["value"] == 7.0
    (tmp_path / "empty").mkdir()
    status, result = run(script, tmp_path, (step,), "--wheels", str(tmp_path / "empty"))
    assert status == 1 and result["steps"]["uses it"]["status"] == "ok"
    assert "no .whl files" in result["steps"]["wheels"]["reason"]


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_keeps_the_results(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpu.json"
    path.write_text("results of a GPU")
    assert script.main(["--json", str(path)]) == 2
    assert path.read_text() == "results of a GPU" and "--dry-run" in capsys.readouterr().out


def test_outcomes_of_gpu_tests_survive_a_crash(script: ModuleType, tmp_path: Path) -> None:
    from gpu import gpu_tests

    (tmp_path / "test_a.py").write_text(
        "import os, pytest\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert 1 == 2\n"
        "def test_skips(): pytest.skip('no numba-cuda')\n"
        "def test_crashes(): os.abort()\n"
    )
    (tmp_path / "test_b.py").write_text("import pytest\npytest.importorskip('package_that_is_missing')\n")
    records = [tmp_path / "a.json", tmp_path / "b.json", tmp_path / "never-started.json"]
    statuses = []
    for name, record in zip(("test_a.py", "test_b.py"), records, strict=False):
        command = [sys.executable, gpu_tests.__file__, str(tmp_path / name), "--json", str(record)]
        statuses.append(subprocess.run(command, capture_output=True, cwd=tmp_path).returncode)
    merged = gpu_tests.merge(records)
    assert statuses == [-signal.SIGABRT, 5]
    assert [merged[outcome] for outcome in gpu_tests.OUTCOMES] == [1, 1, 2]
    assert [name.rpartition("::")[2] for name in merged["running"]] == ["test_crashes"]
    messages = [row["message"] for row in merged["tests"]]
    assert "assert 1 == 2" in messages[1] and "no numba-cuda" in messages[2] and "could not import" in messages[3]


def test_kernels_that_overlap_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "diagnosis"))
    from launch_account import covered

    assert covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0 and covered([]) == 0.0


def test_gpu_tests_that_compile_the_same_share_a_process(script: ModuleType) -> None:
    from gpu import gpu_tests

    games, graph = "t/test_snakes.py::test_games", "t/test_snakes.py::test_graph"
    tests = [f"{games}[a-grid]", f"{games}[a-list]", f"{games}[b-grid]", graph, "t/test_uav.py::test_it[w0]"]
    assert sorted(gpu_tests.groups(tests)) == sorted([[tests[0], tests[2]], [tests[1]], [graph], [tests[4]]])
