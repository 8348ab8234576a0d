"""`powerband profile` on the command line: output, exit status, ranks, invalid input, remaining files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import powerband
import runs
from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.tune.diagnose.causes import CAUSES
from powerband.tune.measure.in_subprocesses import short_run

COMMON = ["gpus=none", "threads=1", "tensorboard=false"]


def test_profile_prints_ledger_cause_and_advice_and_writes_no_files(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    code = cli.main(["profile", *runs.SMALL["ddpg"], *COMMON, "--seconds", "1"])
    text = capsys.readouterr().out
    assert code in {code for code, _ in CAUSES.values()} - {30}
    for part in ("account", "update", "wall", "env steps/s", "option", "cannot help", "total work is unchanged"):
        assert part in text
    assert not list(tmp_path.iterdir())
    assert "OMP_NUM_THREADS" not in os.environ, "a run sets it for its children, and the profile restores it"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["seconds=0"], "0 is below 1"),
        (["seconds=99999"], "99999 is above 600"),
        (["seconds=soon"], "seconds=soon"),
        (["resume=last"], "last"),
        (["updat_interval=3"], "update_interval"),
    ],
)
def test_invalid_input_gives_one_line_and_status_2(arguments: list[str], part: str, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a folder without runs, so that `last` is unknown
    assert cli.main(["profile", "gym", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and part in printed.err


def test_help_lists_causes_with_exit_codes(capsys):
    assert cli.main(["profile", "--help"]) == 0
    text = capsys.readouterr().out
    assert "seconds=20" in text and all(f"{code:>3}  {cause}" in text for cause, (code, _) in CAUSES.items())


@pytest.mark.timed
def test_best_advice_is_applied_and_compared_with_its_prediction(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(powerband.__file__).parents[2] / "benchmarks" / "diagnosis"))
    monkeypatch.setenv("POWERBAND_FAULT_MS", "20")
    report = tmp_path / "profile.json"
    sac = [word for word in runs.SMALL["sac"] if not word.startswith("env_id")]
    slow = ["env_id=faulty_envs:SlowPendulum-v0", "num_workers=1", "updates_per_interval=1", "update_interval=4"]
    code = cli.main(["profile", *sac, *slow, *COMMON, "seconds=3", "--apply", f"--json={report}"])
    result = json.loads(report.read_text())
    assert code == CAUSES["env-bound"][0]
    applied = result["applied"]
    assert (applied["knob"], applied["value"]) == ("num_workers", 2)
    assert 1.4 < applied["predicted_gain"] <= 2.05  # two steps of 20 ms run at the same time instead of in sequence
    assert applied["realised_gain"] == pytest.approx(applied["predicted_gain"], rel=0.25)


def test_too_short_run_is_reported(capsys):
    slow = ["gym", "algo=ppo", "env_id=CartPole-v1", "on_policy.num_envs=8", "num_steps=4096", "num_workers=0"]
    code = cli.main(["profile", *slow, *COMMON, "seconds=1"])
    text = capsys.readouterr().out
    assert code == CAUSES["too-short"][0] == 30
    assert "are too few for a diagnosis" in text and "Measure longer" in text


@pytest.mark.slow
@pytest.mark.timed
def test_window_shorter_than_an_iteration_contains_complete_iterations_with_updates():
    """Steps before learning_starts have no updates; a window that contained them would overestimate the rate."""
    arguments = ["algo=ddpg", "off_policy.num_envs=48", "learning_starts=96", "gpus=none", "threads=1"]
    recipe, stage, resolved = configure("snakes", arguments)
    for probe in (False, True):
        facts = short_run(recipe, stage, resolved.config, 0.3, probe).facts[0]
        assert facts.steady_state and facts.iterations >= 1
        assert facts.grad_steps == facts.env_steps == 48 * facts.iterations
    assert facts.update_s, "single updates were not timed"


@pytest.mark.timed
def test_each_rank_has_a_ledger_and_the_exit_status_is_that_of_the_cause(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    report = tmp_path / "profile.json"
    # On a busy machine a pause of 0.1 s between phases occurs; it would be 5 % of a window of 2 s.
    arguments = [*runs.SMALL["ddpg"], *COMMON, "--nproc", "2", "seconds=4", f"--json={report}"]
    code = cli.main(["profile", *arguments])
    result, printed = json.loads(report.read_text()), capfd.readouterr()
    assert code == result["exit_code"] == CAUSES[result["cause"]][0], printed.err
    assert printed.out == "" and "ended with" not in printed.err
    assert len(result["ranks"]) == 2
    for rank in result["ranks"]:
        assert 100 * 2**20 < rank["facts"]["memory_bytes"] < 4 * 2**30  # per rank: torch alone takes more than 100 MiB
        seconds = rank["ledger"]["seconds"]
        assert seconds["collectives"] > 0
        assert sum(seconds.values()) == pytest.approx(rank["ledger"]["wall_s"], rel=0.02)
        assert seconds["other"] < 0.05 * rank["ledger"]["wall_s"]


@pytest.mark.slow
def test_signal_ends_the_window_and_the_profile_is_printed(tmp_path: Path):
    report = tmp_path / "profile.json"
    arguments = [*runs.SMALL["ddpg"], *COMMON, "seconds=300", f"--json={report}"]
    process = subprocess.Popen([sys.executable, "-m", "powerband", "profile", *arguments], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not _measuring(process.pid):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.2)
    time.sleep(2.5)
    process.send_signal(signal.SIGINT)
    code = process.wait(timeout=60)
    result = json.loads(report.read_text())
    assert code == result["exit_code"] and result["wall_s"] < 100
    assert any("SIGINT ended the measurement early" in note for note in result["remarks"])


def _measuring(pid: int) -> bool:
    """Whether the run has opened its log; it installs its signal handlers at about the same time."""
    files = []
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            files.append(os.readlink(link))
    return any(path.endswith("metrics.jsonl") for path in files)


def test_failing_rank_is_quoted_and_no_process_is_left():
    recipe, stage, resolved = configure("snakes", ["algo=ppo", "gpus=none", "nproc=2"])
    with pytest.raises(ConfigError, match=r"nproc=2: rank [01] ended with status 2 .*snaiks"):
        short_run(replace(recipe, name="snaiks"), stage, resolved.config, 1.0)
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"snaiks" in _bytes(path)]
    assert not left


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
