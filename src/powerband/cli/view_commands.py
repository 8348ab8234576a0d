"""Commands that show runs and recipes: report, watch, list and show."""

from __future__ import annotations

import contextlib
import sys
from operator import attrgetter
from pathlib import Path

from powerband.cli import catalogue
from powerband.cli.arguments import RECIPE_USAGE, take_run
from powerband.cli.catalogue import configure, installed, load, take_recipe
from powerband.core.config import DEFAULT, resolve, to_dict
from powerband.core.config.command_line import print_or_write, split_json_option, wants_help
from powerband.core.config.presets import presets
from powerband.core.config.ranges import range_of
from powerband.core.config.saved import named_run
from powerband.core.config.schema import fields_of, fields_table, value_text
from powerband.core.errors import ConfigError

REPORT_USAGE = "RUN [RUN ...] [to=FILE.html]"
WATCH_USAGE = "RUN [--csv] [--once] [every=SECONDS]"


def report(arguments: list[str]) -> int:
    """Writes the HTML page of a run, or a page that compares several runs, and prints its path.

    Args:
        arguments: Command line after ``powerband report``.

    Returns:
        Exit status, 0 for success.
    """
    target, arguments = split_json_option(arguments)
    page = next((Path(word.removeprefix("to=")) for word in arguments if word.startswith("to=")), None)
    arguments = [word for word in arguments if not word.startswith("to=")]
    folder, others = take_run("report", REPORT_USAGE, arguments)
    if folder is None:
        return 0
    from powerband.report.compare import write_comparison
    from powerband.report.page import write_page

    folders = [folder, *map(named_run, others)]
    written, notes = write_comparison(folders, page) if others else write_page(folder, page)
    for note in notes:
        print(f"powerband: {note}", file=sys.stderr)
    print_or_write({"report": str(written)} if target else str(written), target)
    return 0


def watch(arguments: list[str]) -> int:
    """Prints the state of a run from the files of its folder until the run ends; the run is not affected.

    Args:
        arguments: Command line after ``powerband watch``.

    Returns:
        Exit status: 1 if a process of the run ended without writing a reason, else 0.
    """
    target, arguments = split_json_option(arguments)
    if target not in ("", "-"):
        raise ConfigError(
            f"watch --json={target} is not supported: watch prints one JSON value per line to standard output. Write "
            f"powerband watch RUN --json > {target}."
        )
    folder, arguments = take_run("watch", WATCH_USAGE, arguments)
    if folder is None:
        return 0
    from powerband.report import watch as watching

    if wants_help(arguments):
        print(f"powerband watch {WATCH_USAGE}\n\n{fields_table(watching.WatchOptions)}")
        return 0
    options = resolve(watching.WatchOptions, arguments, help_command=f"powerband watch {folder} --help").config
    with contextlib.suppress(KeyboardInterrupt):
        return watching.watch(folder, options, as_json=bool(target))
    return 0


def list_recipes(arguments: list[str]) -> int:
    """Prints the recipes with their stages and variants, and the hardware presets.

    Args:
        arguments: Command line after ``powerband list``.

    Returns:
        Exit status, 0 for success.
    """
    target, arguments = split_json_option(arguments)
    if wants_help(arguments):
        print("powerband list\n\nlist recipes, stages, variants and hardware presets")
        return 0
    if arguments:
        raise ConfigError(
            f"list takes no argument '{arguments[0]}'. Write powerband list, or powerband show {arguments[0]}."
        )
    table = {}
    for name in catalogue.RECIPES:
        recipe = load(name)
        table[name] = {"what": recipe.summary, "stages": list(recipe.stages), "variants": list(recipe.variants)}
    others = {name: point.value for name, point in installed().items()}
    setups = {name: str(path) for name, path in presets().items()}
    if target:
        print_or_write({"recipes": table, "installed": others, "setups": setups}, target)
        return 0
    for name, row in table.items():
        print(f"{name:<10} {row['what']}")
        print(f"{'':<10} stages: {', '.join(row['stages'])}; variants: {', '.join(row['variants']) or 'none'}")
    for name, module in others.items():
        print(f"{name:<10} from {module}")
    print(f"{'setup=':<10} {', '.join(setups) or 'none'}")
    return 0


def show(arguments: list[str]) -> int:
    """Prints the configuration that `train` would use with the same arguments: each value, its range and its source.

    Args:
        arguments: Command line after ``powerband show``.

    Returns:
        Exit status, 0 for success.
    """
    target, arguments = split_json_option(arguments)
    name, arguments = take_recipe("show", RECIPE_USAGE, arguments)
    if name is None:
        return 0
    recipe, stage, resolved = configure(name, arguments)
    ranges = {path: str(range_of(field.kind) or "") for path, field in fields_of(recipe.Config).items()}
    if target:
        named = {"recipe": name, "stage": stage, "variant": resolved.variant, "notices": list(resolved.notices)}
        print_or_write(
            {**named, "config": to_dict(resolved.config), "sources": resolved.sources, "ranges": ranges}, target
        )
        return 0
    for line in resolved.notices:
        print(f"powerband: {line}", file=sys.stderr)
    rows = [
        (path, value_text(attrgetter(path)(resolved.config)), ranges[path], "" if source == DEFAULT else source)
        for path, source in resolved.sources.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(f"{text:<{width}}" for text, width in zip(row, [*widths, 0], strict=True)).rstrip())
    return 0
