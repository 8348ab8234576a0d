"""Runs of an audit that disturb each other, are interrupted, or stop a worker; the runs are invented."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from powerband.attach.audit import audit as audit_module
from powerband.attach.audit.audit import Audit, AuditResult, ScriptFailed
from powerband.attach.audit.options import AuditOptions
from powerband.attach.audit.short_run import ShortRun
from powerband.attach.processes.records import Record
from powerband.core.errors import ConfigError

OPTION = {"kind": "option", "type": "int", "where": "train.py:1", "given": True, "choices": [], "opaque": False}
READ = {"kind": "read", "id": "argparse:width", "where": "train.py:2"}


def short_run(changes: dict[str, Any], status: int = 0, loss: str = "a", *lines: dict[str, Any]) -> ShortRun:
    facts = {"kind": "facts", "counts": {"updates": 20}, "series": {"loss": [loss]}, "values": {}, "events": []}
    option = {**OPTION, "id": "argparse:width", "name": "width", "value": 3}
    changed = [{"kind": "changed", "id": key} for key in changes]
    record = Record(1, 0, 0, {"rank": ""}, [option, READ, *changed, facts, *lines])
    return ShortRun(changes, [record], "port in use" if status else "", {}, status, False, 1.0)


def audited(
    monkeypatch: pytest.MonkeyPatch, folder: Path, run: Callable[[dict[str, Any]], ShortRun], parallel: int = 2
) -> tuple[Audit, AuditResult | ScriptFailed]:
    monkeypatch.setattr(audit_module, "run_short", lambda command, source, changes, *rest, **named: run(changes))
    audit = Audit(["python"], folder, AuditOptions(parallel=parallel), False, lambda text, share: None)
    return audit, audit.run()


def test_unchanged_runs_that_disturb_each_other_are_repeated_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present, lock = [0], threading.Lock()
    both = threading.Barrier(2)

    def run(changes: dict[str, Any]) -> ShortRun:
        with lock:
            present[0] += 1
            second = present[0] == 2
        if not changes and runs[0] in (1, 2):
            runs[0] += 1
            both.wait(5)  # the two baselines overlap
        elif not changes:
            runs[0] += 1
        with lock:
            present[0] -= 1
        return short_run(changes, int(second), "b" if changes else "a")

    runs = [0]
    audit, found = audited(monkeypatch, tmp_path, run)
    assert isinstance(found, AuditResult) and [one.verdict for one in found.options] == ["works"]
    assert audit.options.parallel == 1 and runs[0] == 5


def test_a_script_whose_unchanged_runs_fail_again_ends_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = iter([0, 0, 1, 0, 1])
    _, found = audited(monkeypatch, tmp_path, lambda changes: short_run(changes, next(runs)))
    assert isinstance(found, ScriptFailed) and (found.console, found.status) == ("port in use", 1)


def test_a_stopped_write_of_a_worker_is_reported_before_the_failure_that_it_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = {"kind": "outside", "path": "/data/out"}
    with pytest.raises(ConfigError, match="before it wrote /data/out"):
        audited(monkeypatch, tmp_path, lambda changes: short_run(changes, 1, "a", outside))


@pytest.mark.parametrize("parallel", [1, 2])
def test_an_interrupted_run_of_the_last_value_leaves_the_option_unknown(
    parallel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: list[Any] = []

    def run(changes: dict[str, Any]) -> ShortRun:
        values.extend(changes.values())
        return short_run(changes)

    audit, found = audited(monkeypatch, tmp_path, run, parallel)
    assert isinstance(found, AuditResult) and [one.verdict for one in found.options] == ["no-effect"]
    last, waited = values[-1], audit_module.wait

    def wait(running: dict[Any, tuple[Any, Any]], return_when: str) -> Any:
        if any(value == last for _, value in running.values()):
            raise KeyboardInterrupt
        return waited(running, return_when=return_when)

    monkeypatch.setattr(audit_module, "wait", wait)
    _, found = audited(monkeypatch, tmp_path, run, parallel)
    assert isinstance(found, AuditResult) and not found.complete
    assert [one.verdict for one in found.options] == ["unknown"] and "not reached" in found.options[0].evidence
