"""The report of a stall, where the console itself is what hangs."""

from __future__ import annotations

import fcntl
import json
import os
import time
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
