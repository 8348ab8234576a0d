"""Command reproduce: repeats a published learning result with another seed."""

from __future__ import annotations

import textwrap

from powerband.core.config import resolve
from powerband.core.config.command_line import print_or_write, split_json_option, wants_help
from powerband.core.config.schema import fields_table
from powerband.results.published import Row, row, rows
from powerband.results.reproduce import ReproduceOptions, reproduce

USAGE = "[ROW] [seed=-1] [run_dir=FOLDER]"


def run(arguments: list[str]) -> int:
    """Lists the published rows, or trains and evaluates one and compares it with the published seeds.

    Args:
        arguments: Command line after ``powerband reproduce``.

    Returns:
        Exit status: 0 if every figure is in the 95 % prediction interval of one run, otherwise 1.
    """
    target, arguments = split_json_option(arguments)
    if wants_help(arguments):
        print(f"powerband reproduce {USAGE}\n\n{fields_table(ReproduceOptions)}\n\nrows:\n{_table()}")
        return 0
    if not arguments:
        if target:
            print_or_write([_facts(each) for each in rows().values()], target)
        else:
            print(_table())
        return 0
    chosen = row(arguments[0])
    options = resolve(ReproduceOptions, arguments[1:], help_command="powerband reproduce --help").config
    result = reproduce(chosen, options)
    if target:
        print_or_write(result, target)
    else:
        print(f"{chosen.name}, seed {result['seed']}, compared with seeds {', '.join(map(str, chosen.seeds))}")
        for figure in result["figures"]:
            interval = f"[{figure['low']:.4g}, {figure['high']:.4g}]"
            verdict = "inside" if figure["inside"] else "OUTSIDE"
            print(f"  {figure['label']:<24} {figure['metric']:<18} {figure['value']:<10.4g} {verdict} {interval}")
        print(f"Intervals: 95 % prediction intervals of one run. Published on {chosen.machine}.")
    return 0 if all(figure["inside"] for figure in result["figures"]) else 1


def _table() -> str:
    """Returns a table of the published rows."""
    from powerband.core.telemetry.console import duration_text  # imports torch

    lines = [f"{'row':<24} {'training':>9}  command"]
    for each in rows().values():
        command = f"powerband train {' '.join(each.train)}"
        lines.append(
            f"{each.name:<24} {duration_text(each.seconds):>9}  {textwrap.shorten(command, 84, placeholder=' ...')}"
        )
    return "\n".join(lines)


def _facts(each: Row) -> dict:
    """Returns the facts of a row as JSON values."""
    return {
        "row": each.name,
        "train": list(each.train),
        "evaluate": list(each.evaluate),
        "seconds": each.seconds,
        "machine": each.machine,
    }
