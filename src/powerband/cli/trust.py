"""Trust: a stored run may name built-in and installed recipes; whatever else it would import needs ``--trust``.

Importing a module runs its code, and a run folder may come from someone else. A name that the user writes on the
command line is trusted, because it is the user's own choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from powerband.core.config import DEFAULT
from powerband.core.config.flags import COMMAND_LINE
from powerband.core.config.texts import shortened, some_of
from powerband.core.errors import ConfigError
from powerband.core.recipe import Recipe

OPTION = "--trust"
ENVIRONMENT_PACKAGES = ("gymnasium", "ale_py", "pettingzoo")
"""Packages of environments and wrappers that a stored run may name: their modules define these and do nothing else."""


def split_trust(arguments: list[str]) -> tuple[bool, list[str]]:
    """Splits off ``--trust``. Returns whether it was given, and the other arguments."""
    return OPTION in arguments, [word for word in arguments if word != OPTION]


def refuse_stored_imports(recipe: Recipe, config: Any, folder: Path, sources: Mapping[str, str] | None = None) -> None:
    """Refuses a stored configuration that names modules outside of known packages, before anything is imported.

    Args:
        recipe: The recipe of the run.
        config: Its configuration.
        folder: Folder that stores the configuration, for the message.
        sources: Qualified name of an option -> its source; options from the command line are trusted. None means that
            the folder stores all options.

    Raises:
        ConfigError: The configuration names such a module. The message names all of them.
    """
    named = [
        f"{option}={name}"
        for option, names in recipe.imports_of(config).items()
        if sources is None or sources.get(option) not in (COMMAND_LINE, DEFAULT)
        for name in names
        if name.partition(":")[0].split(".")[0] not in ENVIRONMENT_PACKAGES
    ]
    if named:
        raise ConfigError(
            f"{shortened(folder, 160)} would import {some_of(named, 4)}. Importing a module runs its code. If you "
            f"trust the folder, add {OPTION}; in train, you can also write these options on the command line."
        )
