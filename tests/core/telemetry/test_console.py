from __future__ import annotations

import errno
import io
import sys
from pathlib import Path

import pytest

import runs
from powerband.core.ranks.ranks import Ranks
from powerband.core.telemetry.console import COLUMNS, Console, duration_text, fit_columns
from powerband.core.telemetry.idle_causes import CAUSES, STRAGGLER, causes_of_idleness, idle_share, largest
from powerband.core.telemetry.phase_clock import PhaseTimes
from powerband.core.telemetry.time_left import FirstRate, TimeLeftEstimator
from powerband.tune.diagnose.causes import CAUSES as PROFILED

LINE = {"charts/SPS": 12_345.0, "charts/episodic_return": -1234.5, "losses/critic": 1.2e-7, "losses/actor": -123456.0}
LINE |= {"losses/policy": -1.23e-5, "losses/value": 0.5, "losses/entropy": 1.0, "eval/return": -1e-9, "charts/win": 0.5}
LINE |= {"perf/share/act": 0.1, "perf/share/update": 0.4, "perf/share/env": 0.3, "perf/share/other": 0.2}


def test_a_line_shows_rate_time_left_and_idle_share_within_its_columns(tmp_path: Path, capsys) -> None:
    pace = TimeLeftEstimator(1_000_000_000, 0)
    pace.add(123_456_789, 3600)
    Console(pace, tmp_path / "log").progress(123_456_789, 3600.0, LINE)
    line = capsys.readouterr().out.rstrip("\n")
    assert line.startswith("[1:00:00]  12%  123M steps  12.3k steps/s  left 7:06:00  idle 50% env  return -1.23e+03")
    assert len(line) <= COLUMNS and "entropy" not in line


@pytest.mark.parametrize(("share", "shown"), [(0.09, False), (0.11, True)])
def test_idle_time_is_shown_from_a_tenth_on(share: float, shown: bool, tmp_path: Path, capsys) -> None:
    line = {"charts/SPS": 100.0, "perf/idle/env-bound": share, "losses/policy": 0.5}
    console = Console(TimeLeftEstimator(1000, 0.0, 0, 0), tmp_path / "train.log")
    console.progress(100, 1.0, line)
    console.close("")
    text = capsys.readouterr().out
    assert ("env-bound" in text) == shown and "policy_loss 0.5" in text


class ClosedTerminal(io.StringIO):
    """Output of which the other end is gone."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_closed_terminal_does_not_end_the_run(terminal: bool, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", ClosedTerminal(terminal))
    console = Console(TimeLeftEstimator(1000, 0.0, 0, 0), tmp_path / "log")
    console.progress(100, 1.0, LINE)
    console.note("a checkpoint")
    console.progress(200, 2.0, LINE)
    console.close("the end")
    print("later output")
    text = (tmp_path / "log").read_text()
    assert text.count("steps/s") == 2 and "a checkpoint" in text and "the end" in text


def test_logged_idle_causes_take_precedence_over_accounts() -> None:
    assert idle_share(LINE) == (pytest.approx(0.5), "env")
    assert idle_share({**LINE, "perf/idle/launch": 0.2, "perf/idle/env_wait": 0.05}) == (pytest.approx(0.25), "launch")
    assert idle_share({"charts/SPS": 1.0}) is None and largest({}) == ("", 0.0)
    assert idle_share({"perf/share/update": 1.0}) == (0.0, "")
    assert largest(LINE) == ("update", 0.4)


def test_idle_time_is_logged_by_cause() -> None:
    host = {"act": 1.0, "update": 4.0, "env": 1.5, "env_wait": 0.5, "collectives": 1.0, "eval": 0.5, "store": 0.5}
    phases = PhaseTimes(10.0, {**host, "other": 1.0}, {}, 9.0, {})
    causes = causes_of_idleness(phases, Ranks())
    expected = {"env-bound": 0.2, "comm-bound": 0.1, "eval-blocking": 0.05, "store": 0.05, "other": 0.1}
    assert causes == pytest.approx({f"perf/idle/{cause}": share for cause, share in expected.items()})
    assert idle_share(causes) == (pytest.approx(0.5), "env-bound")
    assert {*CAUSES.values(), STRAGGLER} <= set(PROFILED), "profile and metrics must use the same names of causes"


def test_with_a_device_its_time_counts() -> None:
    phases = PhaseTimes(10.0, {"update": 0.5, "env": 8.0, "other": 1.5}, {"update": 6.0, "env": 3.0}, 9.0, {})
    causes = causes_of_idleness(phases, Ranks())
    assert causes == pytest.approx({"perf/idle/env-bound": 0.3, "perf/idle/other": 0.1})


def test_the_first_estimate_names_the_budget_that_ends_the_run(tmp_path: Path, capsys) -> None:
    first = FirstRate()
    first.rate, first.updates, first.seconds = 100.0, 50.0, 2.0
    Console(TimeLeftEstimator(36_000, 0, eval_interval=1000), tmp_path / "log").estimate(first, 0, 4.0)
    assert capsys.readouterr().out == (
        "estimate: 100 steps/s, 50 updates/s over 2.0 s; 36k env steps take 6:00 plus evaluations\n"
    )
    Console(TimeLeftEstimator(36_000, 64), tmp_path / "log").estimate(first, 500, 4.0)
    assert "the time limit of 64 s allows 6.5k env steps" in capsys.readouterr().out
    Console(TimeLeftEstimator(36_000, 0), tmp_path / "log").estimate(first, 36_000, 400.0)
    assert not capsys.readouterr().out, "no estimate for a spent budget"


def test_facts_that_do_not_fit_are_omitted_from_the_right() -> None:
    assert fit_columns("ab", ["cd", "ef"], 6) == "ab  cd" and fit_columns("", ["cd"], 5) == "cd"
    assert duration_text(59.6) == "1:00" and duration_text(3725) == "1:02:05"


def test_a_run_prints_its_estimate_within_seconds(tmp_path: Path, capsys) -> None:
    run = runs.train(
        "sac", tmp_path / "run", "time_limit_s=4", "env_steps=1000000", "num_workers=0", "log_interval_s=60"
    )
    output = capsys.readouterr().out
    assert "an estimate follows" in output and "estimate: " in output and "the time limit of 4 s allows" in output
    assert "perf/cpu_cores" in (run / "metrics.jsonl").read_text()
