"""The stage ``pipeline`` of libero passes valid settings to its stages, and states the command that continues it."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.core.run import stage_sequence
from powerband.recipes.libero.config import VARIANTS
from powerband.recipes.libero.pipeline import pipeline

SMOKE = ["pipeline", "variant=smoke"]


def started_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str, status: int = 0
) -> list[list[str]]:
    """Returns the command lines after ``powerband`` that a pipeline starts; each command exits with `status`."""
    started: list[list[str]] = []

    def start(command: list[str], run: Any) -> int:
        started.append(command)
        return status

    monkeypatch.setattr(stage_sequence, "_run_command", start)
    console, ranks = SimpleNamespace(note=lambda text: None), SimpleNamespace(world_size=1)
    run: Any = SimpleNamespace(dir=tmp_path, console=console, ranks=ranks, received_signal="")
    recipe, stage, resolved = configure("libero", [*SMOKE, f"project={tmp_path / 'project'}", *options])
    pipeline(recipe.finalized(resolved.config, stage), run)
    return started


def test_all_stages_accept_an_interval_in_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = started_commands(tmp_path, monkeypatch, "save_updates=2", "updates=6")
    assert [arguments[:3] for arguments in started[:2]] == [["train", "libero", "demos"], ["train", "libero", "train"]]
    for arguments in started[:2]:
        recipe, stage, resolved = configure("libero", arguments[2:])
        config = recipe.finalized(resolved.config, stage)
        assert config.run.save_interval == 2 * 4 and config.run.env_steps == 6 * 4


def test_demonstrations_that_exist_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = started_commands(tmp_path, monkeypatch, "data=own.hdf5")
    assert [arguments[0] for arguments in started] == ["train", "eval"] and started[0][2] == "train"
    assert configure("libero", started[0][2:])[2].config.data == "own.hdf5"


def test_the_command_that_continues_keeps_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as error:
        started_commands(tmp_path, monkeypatch, "updates=7", "rdt.lr=0.125", status=2)
    arguments = shlex.split(str(error.value).partition("write powerband ")[2].removesuffix(" again to continue."))
    assert arguments[:3] == ["train", "libero", "pipeline"]
    recipe, stage, resolved = configure("libero", arguments[2:])
    config = recipe.finalized(resolved.config, stage)
    smoke_max_steps = VARIANTS["smoke"]["max_steps"]
    assert (config.updates, config.rdt.lr, config.max_steps) == (7, 0.125, smoke_max_steps)
    assert config.project == str(tmp_path / "project")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("env_steps=40", "run.env_steps=40 is not supported in the stage pipeline.*Write updates=N"),
        ("updates=0", "updates=0 leaves the stage train without a budget"),
    ],
)
def test_budgets_without_effect_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        started_commands(tmp_path, monkeypatch, option)
