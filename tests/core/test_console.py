from __future__ import annotations

from pathlib import Path

import pytest

import runs
from powerband.core.console import COLUMNS, Console, clock, fitted
from powerband.core.idle import idle, largest
from powerband.core.pace import FirstRate, Pace

LINE = {"charts/SPS": 12_345.0, "charts/episodic_return": -1234.5, "losses/critic": 1.2e-7, "losses/actor": -123456.0}
LINE |= {"losses/policy": -1.23e-5, "losses/value": 0.5, "losses/entropy": 1.0, "eval/return": -1e-9, "charts/win": 0.5}
LINE |= {"perf/share/act": 0.1, "perf/share/update": 0.4, "perf/share/env": 0.3, "perf/share/other": 0.2}


def test_a_line_says_rate_time_left_and_idle_share_and_stays_within_its_columns(tmp_path: Path, capsys) -> None:
    pace = Pace(1_000_000_000, 0)
    pace.add(123_456_789, 3600)
    Console(pace, tmp_path / "log").progress(123_456_789, 3600.0, LINE)
    said = capsys.readouterr().out.rstrip("\n")
    assert said.startswith("[1:00:00]  12%  123M steps  12.3k steps/s  left 7:06:00  idle 50% env  return -1.23e+03")
    assert len(said) <= COLUMNS and "entropy" not in said


def test_what_the_device_says_of_its_idle_time_goes_before_the_accounts() -> None:
    assert idle(LINE) == (pytest.approx(0.5), "env")
    assert idle({**LINE, "perf/idle/launch": 0.2, "perf/idle/env_wait": 0.05}) == (pytest.approx(0.25), "launch")
    assert idle({"charts/SPS": 1.0}) is None and largest({}) == ("", 0.0)
    assert idle({"perf/share/update": 1.0}) == (0.0, "")
    assert largest(LINE) == ("update", 0.4)


def test_the_first_estimate_names_the_budget_that_ends_the_run(tmp_path: Path, capsys) -> None:
    first = FirstRate()
    first.rate, first.updates, first.seconds = 100.0, 50.0, 2.0
    Console(Pace(36_000, 0, eval_interval=1000), tmp_path / "log").estimate(first, 0, 4.0)
    assert capsys.readouterr().out == (
        "estimate: 100 steps/s, 50 updates/s over 2.0 s; 36k env steps take 6:00, and what evaluations take\n"
    )
    Console(Pace(36_000, 64), tmp_path / "log").estimate(first, 500, 4.0)
    assert "the 64 s will do for 6.5k env steps" in capsys.readouterr().out


def test_facts_that_do_not_fit_are_left_out_from_the_right() -> None:
    assert fitted("ab", ["cd", "ef"], 6) == "ab  cd" and fitted("", ["cd"], 5) == "cd"
    assert clock(59.6) == "1:00" and clock(3725) == "1:02:05"


def test_a_run_says_its_estimate_within_seconds(tmp_path: Path, capsys) -> None:
    run = runs.train(
        "sac", tmp_path / "run", "time_limit_s=5", "env_steps=1000000", "num_workers=0", "log_interval_s=60"
    )
    said = capsys.readouterr().out
    assert "an estimate follows" in said and "estimate: " in said and "the 5 s will do for" in said
    assert "perf/cpu_cores" in (run / "metrics.jsonl").read_text()
