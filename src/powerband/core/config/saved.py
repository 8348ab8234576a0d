"""Saved configurations: finds the run that the user names, reads its settings, and converts settings to JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

from powerband.core.config.flags import Flag, from_mapping
from powerband.core.config.texts import SHOWN_PATH, path_problem, shortened
from powerband.core.errors import ConfigError
from powerband.core.json_shape import is_plain
from powerband.core.regular_files import read_object, read_text
from powerband.core.run_folder import find_run


def named_run(target: str, option: str = "") -> Path:
    """Finds the folder of the run that the user names, as `find_run` does. Every failure is one short message.

    Args:
        target: Text from the user.
        option: Name of the option that has `target` as its value, for the message; "" for an argument without a name.

    Raises:
        ConfigError: `target` names no run, or is no possible path.
    """
    shown = f"{option}={shortened(target)}" if option else f"'{shortened(target)}'"
    try:
        return find_run(target)
    except ConfigError as error:
        message = str(error).removeprefix(f"'{target}'")
        raise ConfigError(f"{shown}{message.removeprefix(target)}") from error
    except (OSError, RuntimeError, ValueError) as error:  # too long, a NUL byte, an unknown user after "~"
        problem = path_problem(target) or getattr(error, "strerror", None) or shortened(error)
        raise ConfigError(
            f"{shown} names no run: {problem}. Name a run folder, a checkpoint or a file in one of these, "
            f"or write last for the newest run."
        ) from error


def saved_flags(folder: Path) -> list[Flag]:
    """Reads the configuration ``config.json`` of the run in `folder` as a list of flags.

    The flags ``resume`` and ``run_dir`` are omitted, because a new run sets them itself.
    """
    path = folder / "config.json"
    flags = from_mapping(saved_mapping(saved_text(path), str(path)), str(path))
    return [flag for flag in flags if flag.name not in ("run.resume", "run.run_dir")]


def changed_options(folder: Path, config: Any) -> list[str]:
    """Lists the options whose value in `config` is not that of the run in `folder`, as ``name=value (was value)``.

    Options of the section ``run`` are left out.
    """
    saved = {flag.name: flag.value for flag in saved_flags(folder)}
    return [
        f"{flag.name}={_shown(flag.value)} (was {_shown(saved[flag.name])})"
        for flag in from_mapping(to_dict(config), "configuration")
        if not flag.name.startswith("run.") and flag.value != saved.get(flag.name, flag.value)
    ]


def saved_algorithm(folder: Path) -> str:
    """Value of the option ``algo`` of the run in `folder`; "" if it has none, or if ``config.json`` is unreadable."""
    value = read_object(folder / "config.json").get("algo")
    return value if isinstance(value, str) else ""


def _shown(value: str | tuple[str, ...] | None) -> str:
    return ",".join(value) if isinstance(value, tuple) else shortened(value)


def saved_text(path: Path) -> str:
    """Reads a file of a run.

    Raises:
        ConfigError: It is missing, unreadable or not a text, or it is a link, a pipe or a device.
    """
    try:
        return read_text(path)
    except OSError as error:
        raise ConfigError(
            f"{shortened(path, SHOWN_PATH)} cannot be read ({error.strerror}). Name another run or checkpoint."
        ) from error


def recipe_of(folder: Path) -> str:
    """Returns the name of the recipe that trained the run in `folder`.

    Raises:
        ConfigError: The file ``run.json`` of the run is damaged.
    """
    path = folder / "run.json"
    if path.exists() and not os.access(path, os.R_OK):
        raise ConfigError(f"{shortened(path, SHOWN_PATH)} cannot be read. Correct its permissions.")
    name = read_object(folder / "run.json").get("recipe")
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{shortened(folder / 'run.json', SHOWN_PATH)} is damaged: it does not name the recipe of the run. Name "
            f"another run."
        )
    return name


def refuse_other_recipe(folder: Path, recipe: str) -> None:
    """Refuses to continue the run in `folder` with another recipe than its own; "" accepts any.

    Raises:
        ConfigError: The run is of another recipe, or its ``run.json`` is damaged.
    """
    if recipe and (trained := recipe_of(folder)) != recipe:
        raise ConfigError(f"{folder} is a run of {trained}, not of {recipe}. Write powerband train {trained} ...")


def saved_mapping(text: str, source: str) -> dict[str, Any]:
    try:
        saved = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{shortened(source, SHOWN_PATH)} is not valid JSON ({shortened(error)}). Name another run or checkpoint."
        ) from error
    if not isinstance(saved, dict):
        raise ConfigError(
            f"{shortened(source, SHOWN_PATH)} is not a mapping of settings. Name another run or checkpoint."
        )
    if not is_plain(saved):
        raise ConfigError(
            f"{shortened(source, SHOWN_PATH)} is nested too deeply, or has a number of too many digits. Name another "
            f"run or checkpoint."
        )
    return saved


def to_json(config: Any) -> str:
    """`config` as JSON text. `from_json` restores an equal configuration from it."""
    return json.dumps(to_dict(config), indent=2, allow_nan=False)


def to_dict(value: Any) -> Any:
    """Converts a configuration to JSON types.

    Dataclasses become dicts, tuples become lists, and infinities become the texts inf and -inf.
    """
    if dataclasses.is_dataclass(value):
        return {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_dict(part) for part in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value
