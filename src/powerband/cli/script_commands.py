"""Commands that take a command line of the user after ``--``: profile of a script."""

from __future__ import annotations

import os
import sys

from powerband.core.config import resolve
from powerband.core.config.command_line import print_or_write, split_json_option, wants_help
from powerband.core.config.schema import fields_table
from powerband.core.errors import ConfigError

SEPARATOR = "--"
PROFILE_USAGE = "[seconds=30] [--keep-running] [page=FILE.html] [--json FILE.json] -- COMMAND ..."


def is_script_command(arguments: list[str]) -> bool:
    """Returns whether the arguments of a command contain the command line of a script."""
    return SEPARATOR in arguments


def profile_script(arguments: list[str]) -> int:
    """Runs a script with instrumentation and reports where its time goes.

    Args:
        arguments: Options, ``--``, and the command line of the script.

    Returns:
        Exit status of the script if it has ended by itself, 0 if the profile has ended it.
    """
    from powerband.attach.script_profile import profile_script as run_and_diagnose
    from powerband.attach.script_run import ScriptOptions

    position = arguments.index(SEPARATOR)
    words, command = arguments[:position], arguments[position + 1 :]
    target, words = split_json_option(words)
    if wants_help(words):
        print(f"powerband profile {PROFILE_USAGE}\n\n{fields_table(ScriptOptions)}")
        return 0
    if not command:
        raise ConfigError("No command follows --. Write powerband profile -- python train.py.")
    words = ["keep_running=true" if word in ("--keep-running", "keep-running") else word for word in words]
    options = resolve(ScriptOptions, words, help_command="powerband profile --help --").config
    result, status = run_and_diagnose(command, options)
    sys.stdout.flush()
    if result is None:
        return status or 1
    if target:
        print_or_write(result.to_dict(), target)
    if target != "-":
        print(f"\n{result}", file=sys.stderr)  # the script's own output stays alone on stdout
    if options.page:
        from powerband.attach.page import write_page

        print(f"powerband: report page {os.path.relpath(write_page(result, options.page))}", file=sys.stderr)
    if status:
        print(f"powerband: the script ended with status {status}.", file=sys.stderr)
    return status
