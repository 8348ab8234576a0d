"""Tests of ``powerband watch`` on real runs: running, killed, stopped, resumed and ended."""

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
from powerband.cli import main as cli
from powerband.report import watch
from powerband.report.watch import Watcher


@pytest.fixture
def started(tmp_path: Path):
    """Function that starts a run in another process; the fixture kills it after the test."""
    jobs: list[subprocess.Popen] = []

    def start(*arguments: str) -> tuple[subprocess.Popen, Path]:
        folder = tmp_path / "run"
        command = [sys.executable, "-m", "powerband", "train", *runs.SMALL["sac"], *runs.COMMON, f"run_dir={folder}"]
        log = (tmp_path / "output").open("w")
        jobs.append(
            subprocess.Popen([*command, "num_workers=1", "log_interval_s=0.2", *arguments], stdout=log, stderr=log)
        )
        deadline = time.monotonic() + 60
        while not (folder / "metrics.jsonl").exists() or len(runs.metrics(folder)) < 3:
            assert jobs[-1].poll() is None and time.monotonic() < deadline, (tmp_path / "output").read_text()
            time.sleep(0.1)
        return jobs[-1], folder

    yield start
    for job in jobs:
        job.kill()
        job.wait()


@pytest.mark.timed
def test_a_running_job_is_followed_until_it_ends(started, capsys) -> None:
    _, folder = started("time_limit_s=3", "env_steps=1000000")
    before = sorted(
        (path, path.stat().st_mtime_ns) for path in folder.iterdir() if path.name in ("run.json", "config.json")
    )
    assert cli.main(["watch", str(folder), "--once", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["state"] == "running" and status["env_steps"] > 0 and status["steps_per_s"] > 0
    assert status["largest"] == "update" and 0 < status["largest_share"] <= 1 and 0 <= status["idle"] < 1
    assert status["cpu_cores"] > 0.05 and 0.05 < status["memory_gib"] < 4
    assert 0 < status["left_s"] <= 3, "the time limit ends the run before the budget of steps"
    assert cli.main(["watch", str(folder), "--csv", "every=0.1"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) >= 3 and rows[0]["state"] == "running" and rows[-1]["state"] == "ended"
    assert rows[-1]["detail"].startswith("time limit of 3 s")
    steps = [int(row["env_steps"]) for row in rows]
    assert steps == sorted(steps) and steps[-1] == runs.metrics(folder)[-1]["env_steps"]
    assert before == sorted((path, path.stat().st_mtime_ns) for path, _ in before)


def test_a_killed_job_is_dead_and_the_resume_command_is_shown(started, capsys) -> None:
    job, folder = started("env_steps=1000000", "save_interval=40")
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert cli.main(["watch", str(folder)]) == 1
    output = capsys.readouterr().out
    assert "dead" in output and f"powerband train gym resume={folder}" in output


@pytest.mark.timed
def test_a_stopped_job_is_silent_and_its_processes_are_alive(started, monkeypatch: pytest.MonkeyPatch) -> None:
    job, folder = started("env_steps=1000000")
    monkeypatch.setattr(watch, "SILENT_S", 1.0)
    watcher = Watcher(folder)
    assert watcher.read().state == "running"
    job.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    reading = watcher.read()
    assert reading.state == "silent" and "its processes are alive" in reading.detail
    assert reading.cpu_cores is not None and reading.cpu_cores < 0.6
    job.send_signal(signal.SIGCONT)


def test_a_rewritten_metrics_file_is_read_from_the_start(sac: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sac, tmp_path / "run")
    watcher = Watcher(run)
    assert watcher.read().env_steps == 240
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    assert watcher.read().env_steps == json.loads(lines[1])["env_steps"]
    with (run / "metrics.jsonl").open("a") as file:
        file.write(lines[2][:30])
    assert watcher.read().env_steps == json.loads(lines[1])["env_steps"], "an incomplete line must not be read"
    with (run / "metrics.jsonl").open("a") as file:
        file.write(lines[2][30:])
    assert watcher.read().env_steps == json.loads(lines[2])["env_steps"]


def test_a_run_without_lines_is_starting(sac: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sac, tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    facts = json.loads((run / "processes.json").read_text())
    rank = {
        "hostname": facts["ranks"][0]["hostname"],
        "pid": os.getpid(),
        "began": watch.process_start_ticks(os.getpid()),
    }
    (run / "processes.json").write_text(json.dumps({"ranks": [rank], "ended": None}))
    assert Watcher(run).read().state == "starting"
    rank["began"] += 1  # another process has the same id
    (run / "processes.json").write_text(json.dumps({"ranks": [rank], "ended": None}))
    assert Watcher(run).read().state == "dead"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--cvs"], "Nearest: csv"),
        (["every=0"], "every=2"),
        (["every=soon"], "every=soon"),
        (["--json", "here.json"], "--json > here.json"),
    ],
)
def test_unknown_and_invalid_options_are_refused(arguments: list[str], part: str, sac: Path, capsys) -> None:
    assert cli.main(["watch", str(sac), *arguments]) == 2
    assert part in capsys.readouterr().err


def test_the_rates_stay_after_an_evaluation(tmp_path: Path) -> None:
    line = {"env_steps": 10, "grad_steps": 1, "time_s": 1.0}
    lines = [{**line, "charts/SPS": 12.5, "perf/share/env": 0.9}, {**line, "time_s": 2.0, "eval/return": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    reading = Watcher(tmp_path).read()
    assert (reading.steps_per_s, reading.largest, reading.largest_share) == (12.5, "env", 0.9)
