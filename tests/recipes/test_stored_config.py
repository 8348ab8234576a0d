"""Every recipe reads the configuration of a run by one function: by present and old names, or with a message."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from powerband.cli.catalogue import RECIPES, load
from powerband.core.config import stored_config, to_json
from powerband.core.errors import ConfigError

OLD = {"snakes": ("off_policy", "warmup", "learning_starts", 77), "libero": ("rdt", "execute", "exec_horizon", 3)}


@pytest.mark.parametrize("name", RECIPES)
def test_a_stored_configuration_is_read(tmp_path: Path, name: str) -> None:
    recipe = load(name)
    config = recipe.Config()
    config = replace(config, run=replace(config.run, seed=12))
    (tmp_path / "config.json").write_text(to_json(config))
    assert stored_config(tmp_path, recipe.Config, recipe.old_names) == config


@pytest.mark.parametrize("name", OLD)
def test_old_names_are_read(tmp_path: Path, name: str) -> None:
    recipe, (section, old, new, value) = load(name), OLD[name]
    stored: dict[str, Any] = json.loads(to_json(recipe.Config()))
    del stored[section][new]
    stored[section][old] = value
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert getattr(getattr(stored_config(tmp_path, recipe.Config, recipe.old_names), section), new) == value


@pytest.mark.parametrize(("text", "message"), [(None, "cannot be read"), ("{", "is not valid JSON")])
def test_a_missing_or_damaged_file_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"config.json {message}"):
        stored_config(tmp_path, load("uav").Config)
