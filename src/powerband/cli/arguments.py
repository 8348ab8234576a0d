"""Reads arguments that several commands share."""

from __future__ import annotations

from pathlib import Path

from powerband.core.config.command_line import HELP
from powerband.core.config.saved import named_run
from powerband.core.errors import ConfigError

RECIPE_USAGE = "RECIPE [STAGE] [NAME=VALUE ...]"


def take_run(command: str, usage: str, arguments: list[str]) -> tuple[Path | None, list[str]]:
    """Separates the run, which is the first argument of a command, from the remaining arguments.

    Args:
        command: Name of the command, for messages.
        usage: What follows the name of the command, for its help.
        arguments: Command line after the command.

    Returns:
        (folder of the run, remaining arguments). The folder is None if the arguments ask for help without a run; the
        help was printed.

    Raises:
        ConfigError: There is no argument, or it names no run.
    """
    if arguments and arguments[0] in HELP:
        print(f"powerband {command} {usage}\n\nRUN is a run folder, a path inside it, or last for the newest run.")
        return None, []
    if not arguments or arguments[0].startswith("-"):
        raise ConfigError(
            f"powerband {command} needs a run folder. Write powerband {command} runs/NAME, or powerband {command} last."
        )
    return named_run(arguments[0]), arguments[1:]
