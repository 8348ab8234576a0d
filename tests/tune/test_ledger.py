"""The ledger on real runs through the command line: it is complete, and each second is in one account."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import runs
from powerband import PhaseClock, cli
from powerband.core.run import Run
from powerband.tune.causes import CAUSES
from powerband.tune.ledger import ACCOUNTS, Ledger

OWN = {  # accounts in which each run is bound to spend time
    "ddpg": {"env", "act", "store", "sample", "update"},
    "ppo": {"env", "act", "store", "sample", "update", "returns"},
    "sac": {"env", "env_wait", "act", "store", "sample", "update"},
    "cartpole": {"env", "env_wait", "act", "store", "sample", "update", "returns"},
}


@pytest.mark.parametrize("name", OWN)
def test_accounts_of_a_real_run_sum_to_its_wall_time(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    restarts = []
    restart = Run.restart_clocks
    monkeypatch.setattr(Run, "restart_clocks", lambda run: (restart(run), restarts.append(time.perf_counter())))
    report = tmp_path / "profile.json"
    words = ["profile", *runs.SMALL[name], "gpus=none", "threads=1", "seconds=1.5", "log_interval_s=0.4"]
    code = cli.main([*words, f"--json={report}"])
    ended = time.perf_counter()
    found = json.loads(report.read_text())
    settled = found["ranks"][0]["facts"]["settled"]  # on a busy machine a run may end before
    outside = ended - restarts[2 if settled else 1]  # entering, restoring, beginning the window
    ledger, wall_s = found["ledger"], found["wall_s"]
    assert 1.4 < wall_s < outside
    assert sum(ledger.values()) == pytest.approx(wall_s, rel=0.02)
    assert ledger["other"] < 0.05 * wall_s
    assert OWN[name] | {"log"} <= {account for account, seconds in ledger.items() if seconds > 0}
    assert set(ledger) <= set(ACCOUNTS)
    assert code == found["exit_code"] == CAUSES[found["cause"]][0]
    assert found["steps_per_s"] > 0


def test_a_span_of_each_account_has_its_durations():
    clock = PhaseClock()
    for milliseconds in (1, 1, 1, 20):
        with clock("env"):
            time.sleep(milliseconds / 1e3)
    ledger = Ledger.of(clock.whole())
    figures = ledger.spans["env"]
    assert figures.count == 4 and 0.02 <= figures.worst_s < 0.04
    assert 0.0008 < figures.median_s < 0.004 and figures.tail > 5
    assert figures.mean_s == pytest.approx(ledger.seconds["env"] / 4)
    assert "env" in ledger.table() and Ledger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger


def test_names_that_people_give_their_spans_are_accounts():
    clock = PhaseClock()
    with clock("forward"), clock("checkpoint"):
        pass
    with clock("my own"):
        pass
    assert set(Ledger.of(clock.whole()).seconds) == {"update", "save", "my own", "other"}


def test_the_host_has_time_in_which_the_device_does_nothing():
    clock = PhaseClock()
    with clock("update"):
        time.sleep(0.02)
    ledger = Ledger.of(clock.whole(), kernel_active=0.25)
    assert ledger.seconds["launch"] == pytest.approx(3 * ledger.seconds["update"])
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.wall_s)
