"""The journal continues the log interval of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

import runs
from powerband.core.config import RunConfig
from powerband.core.ranks.ranks import Ranks
from powerband.core.run import restore as restoring
from powerband.core.run.run import Run
from powerband.core.telemetry.compilation import running_time
from powerband.core.telemetry.journal import Journal


def test_a_resumed_interval_counts_the_seconds_before_the_checkpoint(tmp_path: Path) -> None:
    settings = RunConfig(log_interval=100, tensorboard=False)
    journal = Journal(tmp_path, settings, Ranks(rank=0, world_size=1))
    journal.logged, journal._interval_began = (50, 5), running_time() - 1000.0
    state = journal.state_dict()
    journal.restart(0, 0)
    journal.load_state_dict(state)
    assert journal.write(1050, 25, 2000.0)["charts/SPS"] == pytest.approx(1.0, rel=0.05)
    journal.load_state_dict({name: each for name, each in state.items() if name != "interval_s"})
    assert journal.logged == (50, 5)
    journal.close("")


def test_the_clocks_of_a_resumed_run_start_after_its_checkpoint_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, moments = runs.train("sac", tmp_path / "run", "env_steps=60"), {}
    find, load = restoring.find_checkpoint, Run.load_state_dict

    def found(*words):
        result = find(*words)
        moments["found"] = running_time()
        return result

    monkeypatch.setattr(restoring, "find_checkpoint", found)
    monkeypatch.setattr(
        Run, "load_state_dict", lambda run, state: (moments.update(started=run._started), load(run, state))
    )
    runs.resume("sac", run_dir, "env_steps=80")
    assert moments["started"] > moments["found"]
