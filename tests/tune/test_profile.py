"""`powerband profile` from the outside: what it prints, exit status, ranks, bad input, what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import powerband
import runs
from powerband import cli
from powerband.catalogue import configure
from powerband.core.config import ConfigError
from powerband.tune.apart import short_run
from powerband.tune.causes import CAUSES

COMMON = ["gpus=none", "threads=1", "tensorboard=false"]


def test_it_prints_ledger_cause_and_advice_and_leaves_nothing(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = cli.main(["profile", *runs.SMALL["ddpg"], *COMMON, "--seconds", "1.5"])
    text = capsys.readouterr().out
    assert code in {code for code, _ in CAUSES.values()} - {30}
    for part in ("account", "update", "wall", "env steps/s", "knob", "cannot help", "total work is unchanged"):
        assert part in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["seconds=0"], "seconds=0 is outside"),
        (["seconds=99999"], "seconds=99999 is outside"),
        (["seconds=soon"], "seconds=soon"),
        (["resume=last"], "last"),
        (["updat_interval=3"], "update_interval"),
    ],
)
def test_bad_input_is_one_line_and_status_2(words: list[str], part: str, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there is no run that `last` could name
    assert cli.main(["profile", "gym", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and part in printed.err


def test_help_lists_the_causes_with_their_codes(capsys):
    assert cli.main(["profile", "--help"]) == 0
    text = capsys.readouterr().out
    assert "seconds=20" in text and all(f"{code:>3}  {cause}" in text for cause, (code, _) in CAUSES.items())


def test_the_best_advice_is_applied_and_compared(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(powerband.__file__).parents[2] / "benchmarks"))
    monkeypatch.setenv("POWERBAND_FAULT_MS", "20")
    report = tmp_path / "profile.json"
    sac = [word for word in runs.SMALL["sac"] if not word.startswith("env_id")]
    slow = ["env_id=faulty_envs:SlowPendulum-v0", "num_workers=1", "updates_per_interval=1", "update_interval=4"]
    code = cli.main(["profile", *sac, *slow, *COMMON, "seconds=2.5", "--apply", f"--json={report}"])
    found = json.loads(report.read_text())
    assert code == CAUSES["env-bound"][0]
    applied = found["applied"]
    assert (applied["knob"], applied["value"]) == ("num_workers", 2)
    assert 1.4 < applied["predicted_gain"] <= 2.05  # two of 20 ms one after the other become two at a time
    assert applied["realised_gain"] == pytest.approx(applied["predicted_gain"], rel=0.25)


def test_a_run_too_short_to_measure_says_so(capsys):
    slow = ["gym", "algo=ppo", "env_id=CartPole-v1", "on_policy.num_envs=8", "num_steps=2048", "num_workers=0"]
    code = cli.main(["profile", *slow, *COMMON, "seconds=1"])
    text = capsys.readouterr().out
    assert code == CAUSES["too-short"][0] == 30
    assert "too few to judge" in text and "Measure longer" in text


def test_a_window_shorter_than_an_iteration_holds_whole_iterations_that_learn():
    """Steps of the warm-up cost no update: a window with them in it would flatter long iterations."""
    words = ["algo=ddpg", "off_policy.num_envs=48", "warmup=96", "gpus=none", "threads=1"]
    recipe, stage, resolved = configure("snakes", words)
    for probe in (False, True):
        facts = short_run(recipe, stage, resolved.config, 0.3, probe).facts[0]
        assert facts.settled and facts.iterations >= 1
        assert facts.grad_steps == facts.env_steps == 48 * facts.iterations
    assert facts.update_s, "and updates by themselves were timed"


def test_ranks_have_ledgers_of_their_own_and_the_status_is_the_cause(tmp_path: Path):
    report = tmp_path / "profile.json"
    # one pause of a tenth of a second between phases, as a busy machine has them, is 5 % of a window of 2 s
    words = [*runs.SMALL["ddpg"], *COMMON, "--nproc", "2", "seconds=4", f"--json={report}"]
    result = subprocess.run(
        [sys.executable, "-m", "powerband", "profile", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = json.loads(report.read_text())
    assert result.returncode == found["exit_code"] == CAUSES[found["cause"]][0], result.stderr
    assert result.stdout == "" and "ended with" not in result.stderr
    assert len(found["ranks"]) == 2
    for rank in found["ranks"]:
        assert 100 * 2**20 < rank["facts"]["memory_bytes"] < 4 * 2**30  # each its own: torch alone takes more than 100
        seconds = rank["ledger"]["seconds"]
        assert seconds["collectives"] > 0
        assert sum(seconds.values()) == pytest.approx(rank["ledger"]["wall_s"], rel=0.02)
        assert seconds["other"] < 0.05 * rank["ledger"]["wall_s"]


def test_a_signal_ends_the_window_and_what_was_seen_is_reported(tmp_path: Path):
    report = tmp_path / "profile.json"
    words = [*runs.SMALL["ddpg"], *COMMON, "seconds=300", f"--json={report}"]
    process = subprocess.Popen([sys.executable, "-m", "powerband", "profile", *words], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not _measuring(process.pid):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.2)
    time.sleep(2.5)
    process.send_signal(signal.SIGINT)
    code = process.wait(timeout=60)
    found = json.loads(report.read_text())
    assert code == found["exit_code"] and found["wall_s"] < 100
    assert any("ended early by SIGINT" in remark for remark in found["remarks"])


def _measuring(pid: int) -> bool:
    """True once the run has opened its log: its signal handlers stand by then or a moment later."""
    opened = []
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            opened.append(os.readlink(link))
    return any(path.endswith("metrics.jsonl") for path in opened)


def test_a_run_leaves_no_threads_to_the_next(monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cli.main(["profile", *runs.SMALL["ddpg"], "gpus=none", "threads=3", "seconds=1"])
    assert "OMP_NUM_THREADS" not in os.environ


def test_ranks_that_fail_are_quoted_and_none_is_left():
    _, stage, resolved = configure("snakes", ["algo=ppo", "gpus=none", "nproc=2"])
    unknown = SimpleNamespace(__name__="powerband.recipes.snaiks", STAGES={})
    with pytest.raises(ConfigError, match=r"nproc=2: rank [01] ended with status 2 .*snaiks"):
        short_run(unknown, stage, resolved.config, 1.0)
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"snaiks" in _bytes(path)]
    assert not left


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
