"""A run or checkpoint as the opponent in training: stored with the run, resumed without it, refused with a reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import runs
from powerband.cli import main as cli
from powerband.core.config.saved import to_dict
from powerband.core.errors import ConfigError
from powerband.recipes.snakes.config import Config, finalize
from powerband.recipes.snakes.learners import load


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ddpg, whose policy reads fork35."""
    return runs.train("ddpg", tmp_path_factory.mktemp("other") / "run", "env_steps=80")


CONSTANT = "anneal_lr=false"
"""The learning rate does not depend on the budget, so that a run in two parts equals one run."""


def test_a_resume_continues_against_the_stored_policy_without_the_other_run(other: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(other, tmp_path / "copy")
    whole = runs.train("ppo", tmp_path / "whole", "env_steps=512", f"opponent={copy}", CONSTANT)
    parts = runs.train("ppo", tmp_path / "parts", "env_steps=256", f"opponent={copy}", CONSTANT)
    shutil.rmtree(copy)
    runs.resume("ppo", parts, "env_steps=512")
    assert runs.differences(whole, parts) == []
    assert any(name.startswith("shared/opponent/weights") for name in runs.state(parts))
    greedy = runs.train("ppo", tmp_path / "greedy", "env_steps=512", "opponent=greedy", CONSTANT)
    assert runs.metrics(greedy)[-1] != runs.metrics(whole)[-1]


def test_a_resume_may_change_the_opponent(other: Path, tmp_path: Path) -> None:
    run_dir = runs.train("ppo", tmp_path / "run", "env_steps=128", "opponent=greedy")
    runs.resume("ppo", run_dir, "env_steps=256", f"opponent={other}/checkpoints/80")
    assert runs.state(run_dir)["shared/opponent/source"] == f"{other}/checkpoints/80"


def test_the_initial_weights_do_not_depend_on_the_opponent(other: Path, tmp_path: Path) -> None:
    against = [
        runs.train("ppo", tmp_path / name, "env_steps=64", f"opponent={opponent}", "ppo.lr=1e-30")
        for name, opponent in (("run", other), ("random", "random"))
    ]
    first, second = (runs.state(folder) for folder in against)
    weights = "shared/learner/modules/net.trunk.hidden.0.weight"
    assert first[weights].equal(second[weights])


@pytest.mark.parametrize(
    ("opponent", "message"),
    [
        ("greddy", "Did you mean 'greedy'"),
        ("last", "after each start"),
        ("runs/missing", "does not exist"),
        ("{uav}", "is a run of uav"),
        ("{tmp}", "not inside a run folder"),
        ("", "opponent is empty"),
    ],
)
def test_other_opponents_are_refused(opponent: str, message: str, tmp_path: Path) -> None:
    uav = tmp_path / "uav"
    uav.mkdir()
    (uav / "run.json").write_text('{"recipe": "uav"}')
    (uav / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=message):
        finalize(Config(opponent=opponent.format(uav=uav, tmp=tmp_path)), "train")


def test_a_policy_of_other_shapes_is_refused_and_leaves_no_run(
    other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(other, tmp_path / "copy")
    stored = json.loads((copy / "config.json").read_text())
    stored["ddpg"]["hidden"] = 48
    (copy / "config.json").write_text(json.dumps(stored))
    arguments = [*runs.SMALL["ppo"], *runs.COMMON, f"run_dir={tmp_path / 'run'}", f"opponent={copy}"]
    assert cli.main(["train", *arguments]) == 2
    assert "does not fit this configuration" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_recurrent_policy_is_no_player(other: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(other, tmp_path / "copy")
    stored = to_dict(Config(algo="ppo"))
    stored["ppo"]["gru"] = 8
    (copy / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match="no memory"):
        load(copy)
