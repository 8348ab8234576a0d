"""The budget of an audit, and scripts that give it nothing to count; the runs are invented."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from powerband.attach.audit import audit as audit_module
from powerband.attach.audit.audit import Audit, AuditResult
from powerband.attach.audit.options import AuditOptions
from powerband.attach.audit.short_run import ShortRun
from powerband.attach.processes.records import Record
from powerband.cli.main import main
from powerband.cli.script_commands import split_command
from powerband.core.errors import ConfigError

OPTION = {"kind": "option", "type": "int", "where": "train.py:1", "given": True, "choices": [], "opaque": False}


class Clock:
    """A clock that only runs move."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def audit(
    monkeypatch: pytest.MonkeyPatch, folder: Path, run_s: float, timed_out: bool = False, **options: Any
) -> tuple[AuditResult, float]:
    """Audits a script with three options that nobody reads, whose runs take `run_s`. Returns the seconds too."""
    clock = Clock()

    def run_short(command: Any, source: Any, changes: dict[str, Any], limits: Any, stop: Any) -> ShortRun:
        clock.now += run_s
        lines = [{**OPTION, "id": f"argparse:{name}", "name": name, "value": 3} for name in ("one", "two", "three")]
        lines += [{"kind": "changed", "id": key} for key in changes]
        counts = {} if timed_out else {"updates": 20, "env_steps": 20}
        lines.append({"kind": "facts", "counts": counts, "series": {}, "values": {}, "events": []})
        status = None if timed_out else 0
        return ShortRun(changes, [Record(1, 0, 0, {"rank": ""}, lines)], "", {}, status, True, run_s, timed_out)

    monkeypatch.setattr(audit_module, "run_short", run_short)
    monkeypatch.setattr(audit_module.time, "monotonic", clock.monotonic)
    found = Audit(["python"], folder, AuditOptions(parallel=1, **options), False, lambda text, share: None).run()
    monkeypatch.undo()
    assert isinstance(found, AuditResult)
    return found, clock.now


@pytest.mark.parametrize("run_s", [4.0, 19.0, 21.0, 29.0, 50.0])
def test_no_run_starts_that_would_exceed_the_budget(
    run_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, seconds = audit(monkeypatch, tmp_path, run_s, seconds=60.0)
    assert seconds <= 60
    assert found.complete == (run_s == 4.0)
    if not found.complete:
        assert {one.verdict for one in found.options} == {"unknown"}
        assert all("not reached" in one.evidence for one in found.options)


def test_a_script_without_steps_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match="torch.optim.*step and reset.*less than 120 s"):
        audit(monkeypatch, tmp_path, 144.0, timed_out=True)
    monkeypatch.undo()
    assert time.monotonic() - began < 5


def test_a_command_line_without_a_script_is_a_user_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert split_command(["seconds=60", "--", "python", "train.py", "--", "x"]) == (
        ["seconds=60"],
        ["python", "train.py", "--", "x"],
    )
    assert split_command(["seconds=60"]) == (["seconds=60"], [])
    for words in (["audit"], ["audit", "--"], ["profile", "--"]):
        assert main(words) == 2
        assert f"No command follows --. Write powerband {words[0]} -- python train.py." in capsys.readouterr().err
    assert main(["audit", "--help"]) == 0
    usage = capsys.readouterr().out.splitlines()[0]
    assert all(f"[{field.name}=" in usage for field in dataclasses.fields(AuditOptions))
