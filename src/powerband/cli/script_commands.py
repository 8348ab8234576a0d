"""Commands that take a command line of the user after ``--``: profile of a script."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from powerband.core.config import resolve
from powerband.core.config.command_line import check_writable, print_or_write, split_json_option, wants_help
from powerband.core.config.schema import fields_table
from powerband.core.errors import ConfigError, exit_on_signal

if TYPE_CHECKING:
    from powerband.attach.findings import ScriptProfile
    from powerband.attach.processes.script_run import ScriptOptions

SEPARATOR = "--"
PROFILE_USAGE = (
    "[seconds=30] [--keep-running] [page=FILE.html] [--json FILE.json] [--try [--allow-numerics] [--env]] "
    "-- COMMAND ..."
)
FLAGS = {
    "keep-running": "keep_running",
    "try": "try_changes",
    "allow-numerics": "allow_numerics",
    "env": "show_env",
}
"""Flag -> option that it sets."""


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Returns the words before the first ``--``, and the command line of the user after it."""
    position = arguments.index(SEPARATOR) if SEPARATOR in arguments else len(arguments)
    return arguments[:position], arguments[position + 1 :]


def is_script_command(arguments: list[str]) -> bool:
    """Returns whether the arguments of a command contain the command line of a script."""
    return SEPARATOR in arguments


def profile_script(arguments: list[str]) -> int:
    """Runs a script with instrumentation and reports where its time goes.

    Args:
        arguments: Options, ``--``, and the command line of the script.

    Returns:
        Exit status of the script if it has ended by itself, 0 if the profile has ended it; 1 in place of 0 if nothing
        was measured, unless the user has switched the instrumentation off.
    """
    from powerband.attach.processes.launch import switched_off
    from powerband.attach.processes.script_run import ScriptOptions
    from powerband.attach.script_profile import profile_script as run_and_diagnose

    words, command = split_command(arguments)
    target, words = split_json_option(words)
    if wants_help(words):
        print(f"powerband profile {PROFILE_USAGE}\n\n{fields_table(ScriptOptions)}")
        return 0
    if not command:
        raise ConfigError("No command follows --. Write powerband profile -- python train.py.")
    words = [f"{FLAGS[name]}=true" if (name := word.removeprefix("--")) in FLAGS else word for word in words]
    options = resolve(ScriptOptions, words, help_command="powerband profile --help --").config
    _check(options)
    check_writable(options.page, "page=FILE.html")
    if options.try_changes:
        return _try(command, options, target)
    result, status = run_and_diagnose(command, options)
    sys.stdout.flush()
    if result is None:
        return status if switched_off() else status or 1
    failed_early = bool(status) and not result.run.began
    if target != "-" and not failed_early:
        print(f"\n{result}", file=sys.stderr)  # the script's own output stays alone on stdout
    if status:
        early = " before the measurement began, so that there is no report" if failed_early else ""
        print(f"powerband: the script ended with status {status}{early}.", file=sys.stderr)
    _write(result, target, options.page)  # after the report, which a full disk must not cost
    return status


def _write(result: ScriptProfile, target: str, page: str) -> None:
    """Writes the JSON value and the page of a profile, if they are wanted."""
    if target:
        print_or_write(result.to_dict(), target)
    if page:
        from powerband.attach.page import write_page

        print(f"powerband: report page {os.path.relpath(write_page(result, page))}", file=sys.stderr)


def _check(options: ScriptOptions) -> None:
    """Refuses options that only act together with others."""
    for name, flag in (("allow_numerics", "--allow-numerics"), ("show_env", "--env")):
        if getattr(options, name) and not options.try_changes:
            raise ConfigError(f"{flag} acts with --try only. Write powerband profile --try {flag} -- COMMAND.")
    if options.try_changes and options.keep_running:
        raise ConfigError("--try starts the script again and again, so --keep-running is not possible. Leave one out.")


def _try(command: list[str], options: ScriptOptions, target: str) -> int:
    """Profiles a script and tries changes.

    Returns:
        Exit status: the script's own if it has ended with an error, 128 + signal if a signal ended the trials, else
        0; 1 if nothing was measured.
    """
    from powerband.attach.processes.launch import refuse_if_switched_off
    from powerband.attach.trial.script_trial import try_script
    from powerband.core.telemetry.console import budget_progress_bar

    refuse_if_switched_off("powerband profile --try")

    def show(text: str) -> None:
        sys.stdout.flush()
        if target != "-":
            print(f"\n{text}\n", file=sys.stderr, flush=True)

    with exit_on_signal() as received:
        result, status = try_script(command, options, budget_progress_bar, show)
    if result is None:
        print("powerband: nothing was measured: no Python process of the command ran long enough.", file=sys.stderr)
        return status or 1
    if result.tried is None:
        show(str(result))
        print(f"powerband: the script ended with status {status}.", file=sys.stderr)
        _write(result, target, options.page)
        return status
    if target != "-":
        print("\n".join(result.tried.lines()), file=sys.stderr)
    if options.show_env:
        print("\n".join(result.tried.permanent_lines()))
    _write(result, target, options.page)
    return 128 + received[0] if received else 0
