"""Restarts: which runs restarted ranks continue, and the errors after which they are not restarted."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

import runs
from powerband.cli import main as cli
from powerband.cli import run_commands
from powerband.cli.catalogue import configure
from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.ranks import launch, restarts
from powerband.core.ranks.rendezvous import Endpoint
from powerband.core.run import startup
from powerband.core.run.folders.run_lock import RunLock
from powerband.core.run_folder import newest_checkpoint


@pytest.fixture
def launcher(monkeypatch):
    """The environment of ranks that a launcher may restart."""
    for name in (restarts.JOB, restarts.FOLDER, restarts.OUTCOME, restarts.RESUMED):
        monkeypatch.setenv(name, "")  # restores the environment after the test
        monkeypatch.delenv(name)
    restarts.prepare("")
    yield
    if restarts.OUTCOME in os.environ:
        restarts.finish()


def train(run, steps: int) -> int:
    return cli.main(["train", *runs.SMALL["ddpg"], "tensorboard=false", f"run_dir={run}", f"env_steps={steps}"])


def test_restarted_ranks_continue_the_run_of_their_launcher_only(tmp_path, launcher, capsys):
    run = tmp_path / "run"
    assert train(run, 80) == 0
    facts = json.loads((run / "processes.json").read_text())
    assert facts["jobs"] == [restarts.job()] and len(restarts.job()) == 32
    assert train(run, 80) == 0, "restarted after the run had ended"
    assert f"resumed from {run}/checkpoints/80 at 80 env steps" in capsys.readouterr().out
    restarts.finish()
    restarts.prepare("")
    assert train(run, 80) == 0 and restarts.reported(), "a user error is reported to the launcher, and not repeated"
    assert "already contains a run of another job" in capsys.readouterr().err
    assert train(run, 80) == 0 and not capsys.readouterr().out
    assert restarts.finish() == 2


def test_a_restart_keeps_what_was_learned_after_the_checkpoint_that_the_command_resumes(
    tmp_path, launcher, capsys, monkeypatch
):
    run = tmp_path / "run"

    def resume(target: str, steps: int) -> str:
        arguments = [*runs.SMALL["ddpg"], f"resume={target}", f"env_steps={steps}"]
        assert cli.main(["train", *arguments]) == 0 and not restarts.reported(), capsys.readouterr().err
        return capsys.readouterr().out

    assert train(run, 80) == 0
    old, newer = run / "checkpoints" / "80", run / "checkpoints" / "160"
    restarts.finish()
    restarts.prepare("")
    monkeypatch.setenv(restarts.RESUMED, str(run))
    assert f"resumed from {old} " in resume(str(run), 160)
    restarts.finish()
    restarts.prepare("")
    monkeypatch.setenv(restarts.RESUMED, str(old))
    facts = json.loads((run / "processes.json").read_text())
    facts |= {"jobs": [restarts.job()], "newest": newest_checkpoint(run)}
    (run / "processes.json").write_text(json.dumps(facts))
    assert f"resumed from {old} " in resume(str(old), 100), "the lost ranks of this launcher have saved nothing"
    assert not newer.exists()
    shutil.rmtree(old)
    assert f"resumed from {run}/checkpoints/100 " in resume(str(old), 120)


@pytest.mark.parametrize("restarted", [True, False])
def test_ranks_resume_the_run_that_their_launcher_has_found(restarted, launcher, monkeypatch):
    if not restarted:
        restarts.finish()
    monkeypatch.setenv(restarts.RESUMED, "/runs/a")
    assert restarts.resumed("last") == "/runs/a"


def test_ranks_that_were_lost_before_their_first_checkpoint_start_again(tmp_path, launcher, capsys):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.json", "config.json"):
        (run / name).write_text("{}")
    (run / "processes.json").write_text(json.dumps({"jobs": [restarts.job()]}))
    (run / "metrics.jsonl").write_text('{"env_steps": 1000, "time_s": 1}\n')
    assert train(run, 50) == 0 and not restarts.reported(), capsys.readouterr().err
    assert [line["env_steps"] for line in runs.metrics(run)] == [52] and "resumed" not in capsys.readouterr().out


def test_ranks_whose_checkpoints_cannot_be_read_do_not_begin_again(tmp_path, launcher, capsys):
    run = tmp_path / "run"
    assert train(run, 80) == 0
    (run / "checkpoints" / "80" / "manifest.json").write_text("{")
    before = (run / "metrics.jsonl").read_text()
    assert train(run, 160) == 0 and restarts.reported(), "a user error, which is not repeated"
    assert "does not begin again, which would delete them" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_text() == before and (run / "checkpoints" / "80").is_dir()


def test_a_machine_with_an_empty_folder_may_lead_a_run_without_a_checkpoint(tmp_path):
    settings = RunConfig(run_dir=str(tmp_path / "run"))
    assert startup._claim(settings, "snakes", restarted=True, jobs={"a"}) == (tmp_path / "run", True)
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="a run of another job"):
        startup._claim(settings, "snakes", restarted=True, jobs={"a"})


def test_each_machine_keeps_its_own_devices_after_a_restart(tmp_path, launcher):
    run = tmp_path / "run"
    assert train(run, 80) == 0
    recipe, _, resolved = configure("snakes", [*runs.SMALL["ddpg"][1:], f"run_dir={run}", "threads=3", "seed=5"])
    config, restarted = run_commands._continued(recipe, resolved.config)
    assert restarted and config.run.resume == str(run) and config.run.threads == 3
    assert config.run.seed != 5, "settings that the ranks share are the saved ones"


def test_a_user_error_of_another_rank_is_reported_too(launcher, monkeypatch):
    """The launcher of a second machine does not see the report of rank 0, and would start its ranks again."""
    statuses = iter((1, 2))
    monkeypatch.setitem(cli.COMMANDS, "list", (lambda arguments: sys.exit(next(statuses)), "", ""))
    with pytest.raises(SystemExit):
        cli.main(["list"])
    assert not restarts.reported()
    assert cli.main(["list"]) == 0 and restarts.reported()


def test_a_lock_of_the_same_launcher_is_replaced(tmp_path):
    first = RunLock(tmp_path, {"a"})
    with pytest.raises(ConfigError, match="in use"):
        RunLock(tmp_path, {"b"})
    second = RunLock(tmp_path, {"a", "c"})
    assert restarts.jobs_of(tmp_path) == {"a", "c"}
    first.release()
    assert (tmp_path / ".lock").exists()
    second.release()


def test_torchrun_may_restart_ranks_if_it_has_an_id(monkeypatch, tmp_path, capsys):
    for name, value in {"TORCHELASTIC_RUN_ID": "night", "TORCHELASTIC_MAX_RESTARTS": "3"}.items():
        monkeypatch.setenv(name, value)
    assert restarts.job().startswith("torchrun night ") and restarts.job() == restarts.job()
    assert train(tmp_path, 80) == 0
    assert train(tmp_path, 80) == 0 and "resumed from" in capsys.readouterr().out
    monkeypatch.setattr(restarts, "process_start_ticks", lambda pid: -1)  # the same command under a new torchrun
    assert train(tmp_path, 160) == 2 and "already contains a run of another job" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert restarts.job() == ""


def test_several_machines_with_restarts_need_a_common_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "_elastic", lambda *settings: pytest.fail("ranks were started"))
    arguments = ["train", *runs.SMALL["ddpg"], "gpus=none", "nnodes=1:2", "rdzv_endpoint=127.0.0.1:29987"]
    assert cli.main(arguments) == 2
    assert "requires a run_dir, so that restarted ranks find" in capsys.readouterr().err and not list(
        tmp_path.iterdir()
    )


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [([], "did not meet at rdzv_endpoint=there:1"), ([0], "there:1 does not answer any more"), ([0, 143], 143)],
)
def test_the_machine_of_the_endpoint_may_end_first(statuses: list[int], outcome: str | int, monkeypatch) -> None:
    """After a signal, the other machines report its status, although their launchers lose the rendezvous."""
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError
    from torch.distributed.launcher import api

    def ranks(*arguments: str) -> None:
        for status in statuses:
            restarts.note_status(status)
        raise RendezvousConnectionError("the store is gone")

    monkeypatch.setattr(api, "elastic_launch", lambda config, program: ranks)
    endpoint = Endpoint("there", 1, "192.0.2.1", hosted_here=False, own_address="192.0.2.2")
    with restarts.noted_statuses():
        if isinstance(outcome, int):
            assert launch._elastic(endpoint, 1, 2, 2, 0, []) == outcome
        else:
            with pytest.raises(ConfigError, match=outcome):
                launch._elastic(endpoint, 1, 2, 2, 0, [])
    assert restarts.STATUSES not in os.environ and restarts.statuses() == []
