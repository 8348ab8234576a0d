"""The ledger of real runs on the command line: it is complete, and each second is in one account."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import runs
from powerband import PhaseClock
from powerband.cli import main as cli
from powerband.core.run.run import Run
from powerband.tune.diagnose.causes import CAUSES
from powerband.tune.measure.ledger import ACCOUNTS, Ledger

EXPECTED = {  # accounts in which each run spends time
    "ddpg": {"env", "act", "store", "sample", "update"},
    "ppo": {"env", "act", "store", "sample", "update", "returns"},
    "sac": {"env", "env_wait", "act", "store", "sample", "update"},
    "cartpole": {"env", "env_wait", "act", "store", "sample", "update", "returns"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_accounts_of_a_real_run_sum_to_its_wall_time(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    restarts = []
    restart = Run.restart_clocks
    monkeypatch.setattr(Run, "restart_clocks", lambda run: (restart(run), restarts.append(time.perf_counter())))
    monkeypatch.setattr("powerband.tune.profile.advise", lambda *words, **more: [])  # measures runs of its own
    report = tmp_path / "profile.json"
    arguments = ["profile", *runs.SMALL[name], "gpus=none", "threads=1", "seconds=3", "log_interval_s=0.4"]
    code = cli.main([*arguments, f"--json={report}"])
    ended = time.perf_counter()
    result = json.loads(report.read_text())
    steady_state = result["ranks"][0]["facts"]["settled"]  # on a busy machine the run may end during start-up
    longest = ended - restarts[2 if steady_state else 1]  # on entering, on restoring, at the start of the window
    ledger, wall_s = result["ledger"], result["wall_s"]
    assert 2.9 < wall_s < longest
    assert sum(ledger.values()) == pytest.approx(wall_s, rel=0.02)
    assert ledger["other"] < 0.05 * wall_s
    assert EXPECTED[name] | {"log"} <= {account for account, seconds in ledger.items() if seconds > 0}
    assert set(ledger) <= set(ACCOUNTS)
    assert code == result["exit_code"] == CAUSES[result["cause"]][0]
    assert result["steps_per_s"] > 0


def test_ledger_has_the_durations_of_spans():
    clock = PhaseClock()
    for milliseconds in (1, 1, 1, 20):
        with clock("env"):
            time.sleep(milliseconds / 1e3)
    ledger = Ledger.from_phases(clock.read_total())
    figures = ledger.spans["env"]
    assert figures.count == 4 and 0.02 <= figures.worst_s < 0.04
    assert 0.0008 < figures.median_s < 0.004 and figures.worst_s > 5 * figures.median_s
    assert figures.mean_s == pytest.approx(ledger.seconds["env"] / 4)
    assert "env" in ledger.table() and Ledger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger


def test_common_span_names_become_accounts():
    clock = PhaseClock()
    with clock("forward"), clock("checkpoint"):
        pass
    with clock("my own"):
        pass
    assert set(Ledger.from_phases(clock.read_total()).seconds) == {"update", "save", "my own", "other"}


def test_idle_device_time_becomes_the_account_launch():
    clock = PhaseClock()
    with clock("update"):
        time.sleep(0.02)
    ledger = Ledger.from_phases(clock.read_total(), kernels={"update": 0.25})
    assert ledger.seconds["launch"] == pytest.approx(3 * ledger.seconds["update"])
    assert ledger.launch == {"update": ledger.seconds["launch"]}
    by_host = ledger.by_host()
    assert by_host.share("update") == pytest.approx(ledger.share("update", "launch")) and not by_host.launch
    assert Ledger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.wall_s)
