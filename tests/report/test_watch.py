"""Watching real runs from another process: while they train, when they are killed, when they fall silent."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import runs
from powerband import cli
from powerband.report import watch
from powerband.report.watch import Watcher


@pytest.fixture
def started(tmp_path: Path):
    """Starts a run in a process of its own; it is gone when the test is."""
    jobs: list[subprocess.Popen] = []

    def start(*words: str) -> tuple[subprocess.Popen, Path]:
        folder = tmp_path / "run"
        command = [sys.executable, "-m", "powerband", "train", *runs.SMALL["sac"], *runs.COMMON, f"run_dir={folder}"]
        log = (tmp_path / "said").open("w")
        jobs.append(subprocess.Popen([*command, "num_workers=1", "log_interval_s=0.2", *words], stdout=log, stderr=log))
        deadline = time.monotonic() + 60
        while not (folder / "metrics.jsonl").exists() or len(runs.metrics(folder)) < 3:
            assert jobs[-1].poll() is None and time.monotonic() < deadline, (tmp_path / "said").read_text()
            time.sleep(0.1)
        return jobs[-1], folder

    yield start
    for job in jobs:
        job.kill()
        job.wait()


def test_a_running_job_is_read_and_followed_until_it_ends(started, capsys) -> None:
    _, folder = started("time_limit_s=5", "env_steps=1000000")
    before = sorted(
        (path, path.stat().st_mtime_ns) for path in folder.iterdir() if path.name in ("run.json", "config.json")
    )
    assert cli.main(["watch", str(folder), "--once", "--json"]) == 0
    now = json.loads(capsys.readouterr().out)
    assert now["state"] == "running" and now["env_steps"] > 0 and now["steps_per_s"] > 0
    assert now["largest"] == "update" and 0 < now["largest_share"] <= 1 and 0 <= now["idle"] < 1
    assert now["cpu_cores"] > 0.05 and 0.05 < now["memory_gib"] < 4
    assert 0 < now["left_s"] <= 5, "the time limit is nearer than the budget of steps"
    assert cli.main(["watch", str(folder), "--csv", "every=0.1"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) >= 3 and rows[0]["state"] == "running" and rows[-1]["state"] == "ended"
    assert rows[-1]["word"].startswith("time limit of 5 s")
    steps = [int(row["env_steps"]) for row in rows]
    assert steps == sorted(steps) and steps[-1] == runs.metrics(folder)[-1]["env_steps"]
    assert before == sorted((path, path.stat().st_mtime_ns) for path, _ in before)


def test_a_killed_job_is_called_dead_with_the_way_to_go_on(started, capsys) -> None:
    job, folder = started("env_steps=1000000", "save_interval=40")
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert cli.main(["watch", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "dead" in said and f"powerband train gym resume={folder}" in said


def test_a_stopped_job_is_silent_and_its_processes_live(started, monkeypatch: pytest.MonkeyPatch) -> None:
    job, folder = started("env_steps=1000000")
    monkeypatch.setattr(watch, "SILENT_S", 1.0)
    watcher = Watcher(folder)
    assert watcher.read().state == "running"
    job.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    reading = watcher.read()
    assert reading.state == "silent" and "its processes live" in reading.word
    assert reading.cpu_cores is not None and reading.cpu_cores < 0.6
    job.send_signal(signal.SIGCONT)


def test_a_resume_that_rewrites_the_lines_is_followed_from_the_start(sac: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sac, tmp_path / "run")
    watcher = Watcher(run)
    assert watcher.read().env_steps == 240
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    assert watcher.read().env_steps == json.loads(lines[1])["env_steps"]
    with (run / "metrics.jsonl").open("a") as file:
        file.write(lines[2][:30])
    assert watcher.read().env_steps == json.loads(lines[1])["env_steps"], "half a line is no line"
    with (run / "metrics.jsonl").open("a") as file:
        file.write(lines[2][30:])
    assert watcher.read().env_steps == json.loads(lines[2])["env_steps"]


def test_a_run_that_has_written_no_line_yet_is_starting(sac: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sac, tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    facts = json.loads((run / "processes.json").read_text())
    own = {"hostname": facts["ranks"][0]["hostname"], "pid": os.getpid(), "began": watch.process_began(os.getpid())}
    (run / "processes.json").write_text(json.dumps({"ranks": [own], "ended": None}))
    assert Watcher(run).read().state == "starting"
    own["began"] += 1  # the same number, but another process
    (run / "processes.json").write_text(json.dumps({"ranks": [own], "ended": None}))
    assert Watcher(run).read().state == "dead"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--cvs"], "Nearest: csv"),
        (["every=0"], "every=2"),
        (["every=soon"], "every=soon"),
        (["--json", "here.json"], "--json > here.json"),
    ],
)
def test_words_that_mean_nothing_are_refused(words: list[str], part: str, sac: Path, capsys) -> None:
    assert cli.main(["watch", str(sac), *words]) == 2
    assert part in capsys.readouterr().err
