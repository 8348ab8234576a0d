"""The report of a stall, where the console itself is what hangs."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from powerband.core.run_folder import STALL_FILE, process_start_ticks
from powerband.core.stalls import report
from powerband.core.stalls.observation import Observation
from powerband.core.stalls.progress import RankProgress


@pytest.fixture
def blocked_console():
    """Standard error is a full pipe that nobody reads, as of a stopped `tee`."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while os.write(filler, b"\n"):
            pass
    console = os.dup(2)
    os.dup2(writer, 2)
    yield
    os.dup2(console, 2)
    for number in (reader, writer, filler, console):
        os.close(number)


def test_a_console_that_nobody_reads_blocks_neither_the_files_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked_console: None
) -> None:
    monkeypatch.setattr(report, "WRITE_S", 0.3)
    monkeypatch.setattr(report, "STACK_S", 0.0)
    began = process_start_ticks(1)
    progress = RankProgress(0, 1, 1, (began or 0) - 1, 0, "log", 1, False, 100, 9, 0.0, str(tmp_path))
    started = time.monotonic()
    each = report.StallReport(Observation(progress, silent_s=9.0, host="here"), [Observation(progress)], [], 9.0)
    each.publish(ends=True, may_end=True)
    assert time.monotonic() - started < 20
    assert "has made no progress for 9 s in phase log" in json.loads((tmp_path / STALL_FILE).read_text())["message"]
    assert (tmp_path / "stacks" / "rank0.txt").exists()


def many(count: int, folder: str = "") -> list[Observation]:
    own = RankProgress(0, count, os.getpid(), process_start_ticks(os.getpid()), 1, "log", 1, False, 100, 9, 0.0, folder)
    return [Observation(replace(own, rank=index), silent_s=9.0, host="here") for index in range(count)]


def test_every_rank_is_read_once_even_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: dict[int, int] = {}

    def read(each: Observation) -> bytes:
        reads[each.progress.rank] = reads.get(each.progress.rank, 0) + 1
        return b"" if reads[each.progress.rank] == 1 else b"stack"

    monkeypatch.setattr(report, "STACK_S", 0.0)
    monkeypatch.setattr(report, "_read_stacks", read)
    monkeypatch.setattr(report.os, "kill", lambda pid, number: None)
    assert report._take_stacks(many(40)) == dict.fromkeys(range(40), "stack")


@pytest.mark.parametrize("restarts", [False, True])
def test_the_report_says_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool) -> None:
    said: list[str] = []
    monkeypatch.setattr(report, "_print", said.append)
    monkeypatch.setattr(report, "_take_stacks", lambda ranks: {})
    ranks = many(2, str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last").write_text("300\n")
    (tmp_path / "run.json").write_text('{"recipe": "gym"}')
    report.StallReport(ranks[0], ranks, [], 9.0).publish(ends=True, may_end=True, restarts=restarts)
    assert ("start again from the last checkpoint" in said[0]) == restarts
    assert ("The run ends." in said[0]) == ("resume=" in said[0]) == (not restarts)


def test_the_file_of_a_stall_is_gone_when_its_end_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exists: list[bool] = []
    monkeypatch.setattr(report, "_print", lambda text: exists.append((tmp_path / STALL_FILE).exists()))
    monkeypatch.setattr(report, "_take_stacks", lambda ranks: {})
    ranks = many(1, str(tmp_path))
    stall = report.StallReport(ranks[0], ranks, [], 9.0)
    stall.publish(ends=False, may_end=True)
    assert (tmp_path / STALL_FILE).exists()
    stall.withdraw()
    assert len(exists) == 2 and not exists[1] and not (tmp_path / STALL_FILE).exists()
