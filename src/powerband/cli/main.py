"""Command line: selects and runs one command. Only the commands that compute import torch."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from powerband import __version__
from powerband.cli import audit_command, measure_commands, reproduce_command, run_commands, tune_command, view_commands
from powerband.cli.arguments import RECIPE_USAGE
from powerband.cli.catalogue import recipe_lines
from powerband.cli.script_commands import is_script_command, split_command
from powerband.core.config.command_line import checked_choice
from powerband.core.config.texts import printable
from powerband.core.errors import ConfigError, Interrupted
from powerband.core.machine.device import OPENMP_WAIT_VARIABLES, keep_freed_memory
from powerband.core.ranks import restarts

COMMANDS: dict[str, tuple[Callable[[list[str]], int], str, str]] = {
    "train": (run_commands.train, RECIPE_USAGE, "train on a CPU, one GPU, several GPUs or several machines"),
    "eval": (run_commands.evaluate, run_commands.EVAL_USAGE, "evaluate a run or a checkpoint"),
    "profile": (
        measure_commands.profile,
        measure_commands.USAGE["profile"],
        "run a recipe or a script for some seconds: where the time goes, the cause, the gains",
    ),
    "tune": (
        tune_command.tune,
        "RECIPE [objective=throughput] [seconds=60] [NAME=VALUE ...]",
        "find the fastest settings of this machine, by throughput or by the time to a score",
    ),
    "audit": (
        audit_command.audit,
        audit_command.USAGE,
        "find options of a script that have no effect, and wrong claims of a guide",
    ),
    "estimate": (
        measure_commands.estimate,
        measure_commands.USAGE["estimate"],
        "hours, memory and cost of a run before it starts, by number of ranks",
    ),
    "report": (
        view_commands.report,
        view_commands.REPORT_USAGE,
        "one self-contained HTML page about a run, or several compared",
    ),
    "watch": (
        view_commands.watch,
        view_commands.WATCH_USAGE,
        "follow a running job from its files, without touching it",
    ),
    "bench": (measure_commands.bench, measure_commands.USAGE["bench"], "run a benchmark"),
    "reproduce": (
        reproduce_command.run,
        reproduce_command.USAGE,
        "train a published result again, and compare it with the interval of one run",
    ),
    "doctor": (
        measure_commands.doctor,
        measure_commands.USAGE["doctor"],
        "check this machine: GPUs, precision, copies, simulators, rendering, networks",
    ),
    "list": (view_commands.list_recipes, "", "list recipes, stages, variants and hardware presets"),
    "show": (view_commands.show, RECIPE_USAGE, "print the resolved configuration with the source of each value"),
}
"""Command -> (its function, its usage after the name, its description)."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: The command line after ``powerband``; None takes it from the process.

    Returns:
        Exit status: 0 for success; 1 if `doctor` found a failure or `reproduce` a
        figure outside of its interval; 2 for a user error; 128 plus the number of the
        signal that ended the command; for `profile`, the exit code of the diagnosed bottleneck.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    own, _ = split_command(arguments)  # what follows belongs to a script
    traceback_wanted = "--traceback" in own
    arguments = [word for word in own if word != "--traceback"] + arguments[len(own) :]
    if not is_script_command(arguments):  # a script runs with the environment of the user
        if os.environ.get("OMP_WAIT_POLICY", "passive").lower() == "passive":  # torch would make idle threads sleep
            os.environ |= {**OPENMP_WAIT_VARIABLES, **os.environ}  # read when torch is imported
        keep_freed_memory()
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(_usage())
            return 0
        if arguments[0] == "--version":
            print(f"powerband {__version__}")
            return 0
        return COMMANDS[checked_choice(arguments[0], _commands(), "command")][0](arguments[1:])
    except ConfigError as error:
        if traceback_wanted:
            raise
        print(f"powerband: {printable(str(error))}", file=sys.stderr)
        return restarts.report(2)
    except SystemExit as error:  # of a rank, if another one has the message
        if error.code != 2:
            raise
        return restarts.report(2)
    except KeyboardInterrupt as error:
        if traceback_wanted:
            raise
        name = error.signal_name if isinstance(error, Interrupted) else signal.SIGINT.name
        print(f"powerband: {name} ended the command.", file=sys.stderr)
        return 128 + signal.Signals[name]
    except BrokenPipeError:  # the reader of the pipe, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _commands() -> list[str]:
    return [name for name in COMMANDS if name != "bench" or measure_commands.BENCHMARKS]


def _usage() -> str:
    lines = ["powerband COMMAND ...  train policies, see where the time goes, and find the fastest settings", ""]
    for name in _commands():
        _, arguments, what = COMMANDS[name]
        call = f"{name} {arguments}".strip()
        lines.append(f"  {call:<34} {what}" if len(call) <= 34 else f"  {call}\n{'':<36} {what}")
    lines += ["", "recipes:", *recipe_lines(), ""]
    lines.append(
        "Every command takes --json [FILE.json] and --traceback. `powerband train RECIPE --help` lists all settings.\n"
        "A stored run may name built-in and installed recipes; other modules that it would import need --trust."
    )
    return "\n".join(lines)
