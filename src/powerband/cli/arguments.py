"""Reads arguments that several commands share."""

from __future__ import annotations

from pathlib import Path

from powerband.core.config.saved import named_run
from powerband.core.errors import ConfigError

RECIPE_USAGE = "RECIPE [STAGE] [NAME=VALUE ...]"


def take_run(command: str, arguments: list[str]) -> tuple[Path, list[str]]:
    """Separates the run, which is the first argument of a command, from the remaining arguments.

    Args:
        command: Name of the command, for error messages.
        arguments: Command line after the command.

    Returns:
        (folder of the run, remaining arguments).

    Raises:
        ConfigError: There is no argument, or it names no run.
    """
    if not arguments or arguments[0].startswith("-"):
        raise ConfigError(
            f"powerband {command} needs a run folder. Write powerband {command} runs/NAME, or powerband {command} last."
        )
    return named_run(arguments[0]), arguments[1:]
