"""`powerband tune objective=score` on the command line: a real search that ends at its budget, and invalid input."""

from __future__ import annotations

import json
import shlex
import signal
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import IntegrityError

from powerband.cli import main as cli
from powerband.cli import tune_command
from powerband.cli.catalogue import configure, load
from powerband.core.config.presets import user_presets
from powerband.core.errors import ConfigError, Interrupted, exit_on_signal
from powerband.tune.measure import in_subprocesses
from powerband.tune.measure.in_process import Measurement
from powerband.tune.score import preset as presets
from powerband.tune.score import study
from powerband.tune.score.study import SharedStudy

SMALL = ["env_id=CartPole-v1", "algo=ppo", "ppo.hidden=16", "on_policy.num_envs=4", "num_steps=16", "minibatches=2"]
SMALL += ["num_workers=0", "gpus=none", "threads=1", "eval_episodes=2", "env_steps=1000000"]


@pytest.mark.slow
@pytest.mark.usefixtures("short_budgets")
def test_a_search_without_success_ends_at_its_budget_and_replaces_the_preset(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    user_presets().mkdir(parents=True)
    old = user_presets() / "tuned-gym-CartPole-v1-score.yaml"
    old.write_text("run:\n  threads: 1\n")
    arguments = ["objective=score", "target=1e6", "seconds=16", "trial_seconds=0.6", "study_dir=study"]
    assert cli.main(["tune", "gym", *SMALL, *arguments, f"--json={tmp_path / 'result.json'}"]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["chosen"] is None and result["verification"] is None and 15 < result["seconds"] < 60
    assert result["gain"].startswith(
        "No trial reached return 1e+06 in 3 successive evaluations; the best evaluation gave "
    )
    assert result["trials"][0]["present"] and result["trials"][0]["curve"] and result["best_score"] > 5
    assert "\nrun:" not in old.read_text() and 'objective: "score"' in old.read_text()
    page = Path(result["map"]).read_text()
    assert "Pareto front" in page and "present settings" in page and "The search took" in page
    assert (tmp_path / "study" / "study.db").exists() and (tmp_path / "study" / "trials" / "0001").is_dir()
    assert not list((tmp_path / "study").glob("trials/*/checkpoints/.saving*"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["objective=score"], "objective=score needs a target"),
        (["objective=speed"], "objective=speed"),
        (["target=5"], "target=5 needs objective=score"),
        (["objective=score", "target=5", "learning=fixed"], "learning=fixed needs objective=throughput"),
        (["objective=score", "target=5", "seconds=1"], "1 is below 60"),
        (["objective=score", "target=5", "seeds=2"], "2 is below 3"),
        (["objective=score", "target=5", "parallel=1000"], "parallel=1000 is above"),
        (["objective=score", "target=5", "resume=last"], "runs"),
        (["objective=score", "target=5", "setup=mine"], "tune does not support setup="),
    ],
)
def test_invalid_input_gives_one_line_and_status_2(arguments: list[str], part: str, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", "gym", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and part in printed.err
    assert not list(tmp_path.iterdir())


def test_a_recipe_without_a_score_is_refused(capsys, monkeypatch) -> None:
    from dataclasses import replace

    from powerband.cli import catalogue
    from powerband.recipes.gym import RECIPE

    monkeypatch.setattr(catalogue, "load", lambda name: replace(RECIPE, score=""))
    assert cli.main(["tune", "gym", "objective=score", "target=5"]) == 2
    assert "names no score" in capsys.readouterr().err


def test_a_locked_or_unreachable_storage_is_a_user_error(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        SharedStudy(str(tmp_path / "no" / "such" / "journal.log"), tmp_path, "a", 1.0, "one")
    with pytest.raises(ConfigError, match="cannot be used"):
        SharedStudy("sqlite:////no/such/folder/a.db", tmp_path, "a", 1.0, "one")
    with pytest.raises(ConfigError, match="psycopg.* is not installed|cannot be used"):
        SharedStudy("postgresql://nobody@127.0.0.1:9/nothing", tmp_path, "a", 1.0, "one")
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(ConfigError, match="needs the package pymysql, .*Run pip install 'pymysql'"):
        SharedStudy("mysql+pymysql://nobody@127.0.0.1:9/nothing", tmp_path, "a", 1.0, "one")
    monkeypatch.setattr(study, "LOCK_TIMEOUT_S", 0.2)
    shared = SharedStudy("", tmp_path, "a", 1.0, "one")
    with sqlite3.connect(tmp_path / "study.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigError, match="locked"):
            shared.set(start_score=1.0)
        other.execute("ROLLBACK")
    shared.set(start_score=1.0)
    assert shared.attributes()["start_score"] == 1.0


def test_a_search_waits_while_another_one_creates_the_tables(tmp_path: Path, monkeypatch) -> None:
    storage, failures = SharedStudy._storage, [IntegrityError("CREATE TABLE", {}, Exception("duplicate key"))] * 2

    def _storage(self: SharedStudy, *arguments) -> object:
        if failures:
            raise failures.pop()
        return storage(self, *arguments)

    monkeypatch.setattr(SharedStudy, "_storage", _storage)
    monkeypatch.setattr(study, "PAUSE_S", 0.01)
    assert SharedStudy(f"sqlite:///{tmp_path}/a.db", tmp_path, "a", 1.0, "one").attributes() == {"rate of one": 1.0}
    failures.extend([IntegrityError("CREATE TABLE", {}, Exception("duplicate key"))] * study.TRIES)
    with pytest.raises(ConfigError, match="duplicate key"):
        SharedStudy(f"sqlite:///{tmp_path}/a.db", tmp_path, "a", 1.0, "two")


def test_arguments_that_every_trial_sets_itself_are_removed_with_their_old_names() -> None:
    recipe = load("uav")
    old = next(old for old, new in recipe.old_names.items() if new == "run.seed")
    written = ["train", f"{old}=1", "seed=2", "--run.seed", "3", "eval_process=on", "run.eval-process=off", "threads=1"]
    written += ["--no-tensorboard", "--no-run.tensorboard", "--run.no-tensorboard"]
    assert tune_command.own_settings(recipe, written) == ["threads=1"]


def test_a_summary_may_contain_braces_and_its_command_is_quoted(monkeypatch, tmp_path: Path, capsys) -> None:
    result = SimpleNamespace(chosen={}, space=SimpleNamespace(recipe=load("gym"), stage="train"))
    measured = SimpleNamespace(facts=[SimpleNamespace(iterations=1)], steps_per_s=1.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("powerband.tune.measure.in_subprocesses.short_run", lambda *_, **__: measured)
    monkeypatch.setattr("powerband.tune.score.setting_space.usable_algorithms", lambda *_: {"ppo": runs_config})
    monkeypatch.setattr("powerband.tune.score.search.search_and_verify", lambda _: result)
    monkeypatch.setattr(presets, "write_preset", lambda *_: tmp_path / "a.yaml")
    monkeypatch.setattr(presets, "table", lambda _: "found {x: 1}")
    monkeypatch.setattr("powerband.report.page.write_tuning_page", lambda _: tmp_path / "a.html")
    runs_config = configure("gym", ["env_id=CartPole-v1", "algo=ppo"])[2].config
    arguments = ["env_id=CartPole-v1", "algo=ppo", 'env_kwargs={"sutton_barto_reward": true}']
    assert cli.main(["tune", "gym", *arguments, "objective=score", "target=5", "seconds=60"]) == 0
    printed = capsys.readouterr()
    assert "found {x: 1}" in printed.out and shlex.quote(arguments[-1]) in printed.out
    assert "study_dir=" in printed.err and "continues the search" in printed.err


def test_a_signal_in_a_short_run_ends_the_command_with_one_line(monkeypatch, capsys) -> None:
    interrupted = Measurement([], [], True, "SIGTERM")
    monkeypatch.setattr(in_subprocesses, "measure", lambda *_: interrupted)
    assert cli.main(["tune", "gym", "env_id=CartPole-v1", "algo=ppo", "gpus=none"]) == 143
    assert capsys.readouterr().err.splitlines()[-1].endswith("powerband: SIGTERM ended the command.")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_search_like_an_exception(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=number.name), exit_on_signal():
        signal.raise_signal(number)
    assert signal.getsignal(number) == before
