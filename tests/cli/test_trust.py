"""A stored run imports built-in and installed recipes only, unless the user trusts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.config import to_dict
from powerband.core.errors import ConfigError

MODULE = "somebodys_module"
ENV, WRAPPER = f"{MODULE}:Env-v0", f"{MODULE}:Wrapper"
MAKER = '{"env_id": "somebodys_module:Env-v0"}'
STORED = [
    {"env_id": ENV},
    {"env_id": f"{MODULE}.envs:parallel_env"},
    {"wrap": {"wrappers": ["gymnasium.wrappers:ClipAction", WRAPPER]}},
    {"env_id": "GymV21Environment-v0", "env_kwargs": MAKER},
]
"""Changes of the configuration that a folder stores; each names a module."""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that can be imported, but must not be."""
    (tmp_path / f"{MODULE}.py").write_text("import gymnasium\nWrapper = gymnasium.wrappers.ClipAction\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def stored_run(folder: Path, change: dict, recipe: str = "gym") -> Path:
    """A run folder with the default configuration and a change of it."""
    folder.mkdir()
    config = to_dict(configure("gym", ["algo=sac"])[2].config)
    for name, value in change.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "run.json").write_text(json.dumps({"recipe": recipe}))
    (folder / "metrics.jsonl").write_text('{"env_steps": 1, "grad_steps": 0, "time_s": 1.0}\n')
    return folder


@pytest.mark.parametrize("change", STORED, ids=lambda change: json.dumps(change)[:40])
def test_what_a_stored_run_would_import_is_named_and_not_imported(change: dict, tmp_path: Path, capsys) -> None:
    run = stored_run(tmp_path / "run", change)
    for command in (
        ["eval", str(run)],
        ["train", "gym", f"resume={run}"],
        ["train", "gym", "--config", str(run / "config.json"), f"run_dir={tmp_path / 'new'}"],
        ["profile", "gym", "--config", str(run / "config.json")],
    ):
        assert cli.main(command) == 2, command
        message = capsys.readouterr().err
        assert MODULE in message and "--trust" in message and message.count("\n") == 1, (command, message)
    assert cli.main(["report", str(run)]) == 0 and cli.main(["watch", str(run), "--once"]) in (0, 1)
    assert MODULE not in sys.modules


def test_a_trusted_run_imports_what_it_names(tmp_path: Path, capsys) -> None:
    run = stored_run(tmp_path / "run", {"wrap": {"wrappers": [WRAPPER]}})
    assert configure("gym", [f"resume={run}", "--trust"])[2].config.wrap.wrappers == (WRAPPER,)
    assert cli.main(["eval", str(run), "--trust", "episodes=1"]) == 2
    assert "has no checkpoint" in capsys.readouterr().err, "the next problem of this folder"


def test_the_command_line_of_the_user_is_trusted(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "run", {"env_id": ENV})
    assert configure("gym", [f"resume={run}", f"env_id={ENV}"])[2].config.env_id == ENV
    assert configure("gym", [f"env_id={ENV}", f"wrappers={WRAPPER}"])[2].config.env_id == ENV
    own = tmp_path / "own.yaml"
    own.write_text(f"env_id: {ENV}\n")
    assert configure("gym", ["--config", str(own)])[2].config.env_id == ENV, "a file that is in no run"
    with pytest.raises(ConfigError, match="wrap.wrappers=.*--trust"):
        stored_run(tmp_path / "both", {"env_id": ENV, "wrap": {"wrappers": [WRAPPER]}})
        configure("gym", [f"resume={tmp_path / 'both'}", f"env_id={ENV}"])


def test_names_of_gymnasium_and_pettingzoo_need_no_trust(tmp_path: Path) -> None:
    change = {
        "env_id": "pettingzoo.classic.rps_v2:parallel_env",
        "wrap": {"wrappers": ["gymnasium.wrappers:ClipAction"]},
    }
    assert configure("gym", [f"resume={stored_run(tmp_path / 'run', change)}"])


def test_an_outside_recipe_by_module_path_needs_trust(tmp_path: Path, capsys) -> None:
    run = stored_run(tmp_path / "run", {}, recipe=f"{MODULE}.recipe")
    assert cli.main(["eval", str(run)]) == 2
    assert f"'{MODULE}.recipe'" in capsys.readouterr().err and MODULE not in sys.modules


def test_trust_without_a_stored_run_is_noticed() -> None:
    assert any("--trust: no effect" in line for line in configure("gym", ["--trust"])[2].notices)


@pytest.mark.parametrize("env_id", ["a:b:parallel_env", ":x", ".a:b", "ALE/x:y", "a b:c", "a:"])
def test_a_malformed_id_is_refused(env_id: str, tmp_path: Path, capsys) -> None:
    arguments = [f"env_id={env_id}", "gpus=none", "num_workers=0", f"run_dir={tmp_path / 'run'}", "tensorboard=false"]
    assert cli.main(["train", "gym", *arguments]) == 2
    assert "is not an id" in capsys.readouterr().err
