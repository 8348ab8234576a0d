"""Signals that end an audit or trials, and files of results that cannot be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import powerband
from powerband.attach.audit.short_run import Limits, run_short
from powerband.attach.findings import ScriptProfile, script_profile
from powerband.attach.processes.records import Record
from powerband.attach.processes.script_run import ScriptRun
from powerband.attach.trial import script_trial
from powerband.cli.main import main
from powerband.core.errors import Interrupted, exit_on_signal


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_an_audit_ends_its_run_and_removes_its_copy(number: signal.Signals, tmp_path: Path) -> None:
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()
    (work / "train.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(powerband.__file__).parents[1])}
    command = [sys.executable, "-m", "powerband", "audit", "--", sys.executable, "train.py"]
    audit = subprocess.Popen(command, cwd=work, env=environment, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 60
    while not (texts := [file.read_text() for file in temporary.glob("powerband-audit-*/console")]) or not texts[0]:
        assert time.monotonic() < limit and audit.poll() is None
        time.sleep(0.05)
    audit.send_signal(number)
    _, errors = audit.communicate(timeout=60)
    assert audit.returncode == 128 + number and f"{number.name} ended the command" in errors
    assert gone(int(texts[0])) and not list(temporary.iterdir())


def test_another_thread_can_end_a_short_run(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    began = time.monotonic()
    found = run_short([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, {}, Limits(most_s=60), stop)
    assert found.timed_out and time.monotonic() - began < 20


def test_only_the_first_signal_raises() -> None:
    with exit_on_signal() as received, pytest.raises(Interrupted):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGHUP)
    assert received == [signal.SIGTERM, signal.SIGHUP]


def profile(status: int) -> ScriptProfile:
    common = {"kind": "times", "samples": [], "bins": {}, "counts": {}, "envs": {}}
    common |= dict.fromkeys(("cpu_s", "thread_s", "queue_s", "env_steps", "optimizer_steps", "num_envs"), 0)
    lines = [{**common, "now_ns": i * 10**9, "ns": {"other": i * 10**9}, "updates": i} for i in (1, 2)]
    record = Record(1, 0, 0, {"rank": "", "argv": []}, lines)
    found = script_profile(["python"], ScriptRun([record], [], status, 0, 2 * 10**9, 0.0))
    assert found is not None
    return found


def test_try_writes_json_even_if_the_script_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_trial, "try_script", lambda *rest: (profile(3), 3))
    file = tmp_path / "profile.json"
    assert main(["profile", "--try", "--json", str(file), "--", "python"]) == 3
    assert json.loads(file.read_text())["wall_s"] == 1.0


@pytest.mark.parametrize("command", [["profile"], ["profile", "--try"], ["audit"]])
def test_files_that_cannot_be_written_are_refused_before_the_run(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path, tmp_path / "file" / "profile.json"):
        assert main([*command, f"--json={target}", "--", sys.executable, "-c", "print('ran')"]) == 2
        out, err = capsys.readouterr()
        assert out == "" and f"{target} cannot be written" in err
    if command != ["audit"]:
        assert main([*command, f"page={tmp_path}", "--", sys.executable, "-c", "print('ran')"]) == 2
        assert "Name another file with page=FILE.html" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json=", "page="])
def test_the_report_is_printed_before_a_file_that_fails(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import powerband.attach.script_profile as module

    def run(*rest: Any) -> tuple[ScriptProfile, int]:
        file.mkdir()  # during the run
        return profile(0), 0

    file = tmp_path / "profile"
    monkeypatch.setattr(module, "profile_script", run)
    assert main(["profile", f"{option}{file}", "--", "python"]) == 2
    err = capsys.readouterr().err
    assert err.index("after 0.0 s of start-up") < err.index("cannot be written")
    assert f"Name another file with {option}FILE." in err


def test_attach_removes_its_folder_if_the_file_cannot_be_written(tmp_path: Path) -> None:
    sources = str(Path(powerband.__file__).parents[1])
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": sources}
    (tmp_path / "tmp").mkdir()
    code = (
        "import os, time, powerband\npowerband.attach(json='file.json')\ntime.sleep(1)\nos.mkdir('file.json')\n"
        "try: powerband.attach(json='/dev/null/file.json')\nexcept powerband.ConfigError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "of start-up" in done.stderr and "powerband: file.json cannot be written" in done.stderr
    assert not list((tmp_path / "tmp").iterdir())
