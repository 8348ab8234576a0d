"""Command line: the options that several commands share, and the output of results as text or JSON."""

from __future__ import annotations

import json
import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from powerband.core.config.flags import starts_flag
from powerband.core.config.texts import shortened, some_of
from powerband.core.errors import ConfigError

HELP = ("-h", "--help")


def split_json_option(arguments: list[str]) -> tuple[str, list[str]]:
    """Separates the option ``--json``, which selects the output format, from the other command-line arguments.

    The forms are ``--json``, ``--json PATH.json`` and ``--json=PATH``.

    Returns:
        The output ("" without the option, "-" for JSON on stdout, or the path of a JSON file), and the other arguments.

    Raises:
        ConfigError: The file cannot be written. A command that runs for long says so at its start.
    """
    for position, argument in enumerate(arguments):
        after = position + 1
        if argument.startswith("--json="):
            target = argument.removeprefix("--json=") or "-"
        elif argument == "--json":
            has_path = after < len(arguments) and arguments[after].endswith(".json")
            target = arguments[after] if has_path else "-"
            after += has_path
        else:
            continue
        check_writable(target, "--json=FILE.json")
        return target, arguments[:position] + arguments[after:]
    return "", arguments


def check_writable(target: str, option: str) -> None:
    """Refuses a file that cannot be written, without creating it.

    Args:
        target: Path of the file; "" and "-" are no files.
        option: The option that names it, for the message.

    Raises:
        ConfigError: It is a folder or read only, or its folder cannot be created.
    """
    if target in ("", "-"):
        return
    path = Path(target)
    reason = ""
    try:
        folder = path.parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if path.is_dir():
            reason = "it is a folder"
        elif not folder.is_dir():
            reason = f"{folder} is no folder"
        elif not os.access(path if path.exists() else folder, os.W_OK):
            reason = "permission denied"
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        raise ConfigError(f"{target} cannot be written: {reason}. Name another file with {option}.")


def split_named_options(arguments: list[str], names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Separates the command-line arguments that set one of `names` from all others.

    The forms are ``name=value``, ``--name value`` and bare ``--name``.

    Returns:
        The arguments that set one of `names`, and the others.
    """
    selected: list[str] = []
    others: list[str] = []
    position = 0
    while position < len(arguments):
        argument, end = arguments[position], position + 1
        if argument.startswith("--") and "=" not in argument:
            while end < len(arguments) and not starts_flag(arguments[end]):
                end += 1
        named = argument.removeprefix("--").split("=")[0].replace("-", "_") in names
        (selected if named else others).extend(arguments[position:end])
        position = end
    return selected, others


def wants_help(arguments: list[str]) -> bool:
    return any(argument in HELP for argument in arguments)


def checked_choice(value: str, choices: Any, kind: str) -> str:
    """Returns `value` if it is one of `choices`.

    Args:
        value: Text from the user.
        choices: Allowed texts.
        kind: Noun for the choices in the message, such as recipe.

    Raises:
        ConfigError: `value` is unknown. The message names the nearest choice and all choices.
    """
    if value in choices:
        return value
    written = shortened(value)
    near = get_close_matches(written, list(choices), n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise ConfigError(f"Unknown {kind} '{written}'.{hint} Available: {some_of(choices, 20)}.")


def print_or_write(value: Any, target: str) -> None:
    """Prints `value`, or writes it to a file.

    Args:
        value: A text, or a value of JSON types such as a dict.
        target: "" prints to stdout, a text as it is and any other value as JSON; "-" prints JSON to stdout; anything
            else is the path of a JSON file to create.

    Raises:
        ConfigError: The file cannot be written.
    """
    if target not in ("", "-"):
        try:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(target).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            print(json.dumps(value, indent=2))  # the result of a long command is not lost
            raise ConfigError(
                f"{target} cannot be written ({error.strerror}), so the JSON stands in the standard output. Name "
                f"another file with --json=FILE.json."
            ) from error
    else:
        print(value if isinstance(value, str) and not target else json.dumps(value, indent=2))
