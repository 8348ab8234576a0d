"""Command ``powerband tune``: searches for the fastest settings, by throughput or by the time to a score."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from powerband.cli.catalogue import configure, take_recipe
from powerband.core.config import ResolvedConfig, resolve
from powerband.core.config.command_line import print_or_write, split_json_option, split_named_options
from powerband.core.config.presets import TunedKey
from powerband.core.config.schema import fields_table, value_text
from powerband.core.errors import ConfigError, exit_on_signal
from powerband.core.recipe import Recipe
from powerband.tune.score.options import ObjectiveOptions, ScoreOptions
from powerband.tune.search.options import SearchOptions

USAGE = (
    "RECIPE [objective=throughput] [seconds=60] [learning=fixed] [memory_gib=0] [score_seconds=0] [NAME=VALUE ...]\n"
    "       RECIPE objective=score target=SCORE [seconds=1800] [parallel=1] [storage=] [study_dir=] [NAME=VALUE ...]"
)
FIRST_RATE_S = 2.0
"""Window of the measurement of the present settings before a search for the time to a score."""


def tune(arguments: list[str]) -> int:
    """Searches for the fastest settings on this machine and writes them as a preset, a YAML file with settings.

    Args:
        arguments: Command line after ``powerband tune``.

    Returns:
        Exit status, 0 for success.
    """
    target, arguments = split_json_option(arguments)
    name, arguments = take_recipe("tune", USAGE, arguments)
    if name is None:
        titles = {ObjectiveOptions: "tune", SearchOptions: "objective=throughput", ScoreOptions: "objective=score"}
        for schema, title in titles.items():
            print(fields_table(schema, title=f"options of {title}"))
        return 0
    chosen, arguments = split_named_options(arguments, ("objective",))
    help_command = f"powerband tune {name} --help"
    objective = resolve(ObjectiveOptions, chosen, help_command=help_command).config.objective
    schemas: dict[str, type] = {"throughput": SearchOptions, "score": ScoreOptions}
    names = {key: tuple(field.name for field in fields(schema)) for key, schema in schemas.items()}
    own_arguments, arguments = split_named_options(arguments, (*names["throughput"], *names["score"]))
    for key in schemas:
        foreign = tuple(name for name in names[key] if key != objective and name not in names[objective])
        if found := split_named_options(own_arguments, foreign)[0]:
            raise ConfigError(f"{found[0]} needs objective={key}. Write objective={key}, or leave {found[0]} out.")
    options = resolve(schemas[objective], own_arguments, help_command=help_command).config
    if split_named_options(arguments, ("setup", "tuned"))[0]:
        raise ConfigError(
            "tune does not support setup=: it writes a preset, and a run uses one preset. Write the settings of the "
            "other preset as arguments."
        )
    recipe, stage, resolved = configure(name, arguments)
    from powerband.core.ranks import launch

    settings = resolved.config.run
    if launch.is_rank() or settings.resume or settings.nnodes != "1":
        given = "a launcher" if launch.is_rank() else "resume" if settings.resume else f"nnodes={settings.nnodes}"
        raise ConfigError(
            f"tune does not support {given}: it starts short runs itself. Run powerband tune {name} without {given}."
        )
    recipe.check_sizes(resolved.config, launch.world_size(settings))
    for line in resolved.notices:
        print(f"powerband: {line}", file=sys.stderr)
    search = _score if objective == "score" else _throughput
    path, text = search(recipe, stage, resolved, options, arguments)
    from powerband.report.page import write_tuning_page

    page = write_tuning_page(path)
    if target:
        measured = json.loads(path.with_suffix(".tuning.json").read_text(encoding="utf-8"))
        print_or_write({**measured, "preset": str(path), "map": str(page)}, target)
        return 0
    print(text(page))
    return 0


def _throughput(
    recipe: Recipe, stage: str, resolved: ResolvedConfig, options: Any, arguments: list[str]
) -> tuple[Path, Callable[[Path], str]]:
    """Searches for throughput. Returns the preset and a function: path of its page -> summary."""
    from powerband.core.telemetry.console import budget_progress_bar
    from powerband.tune.score.trials.short_runs import with_scores
    from powerband.tune.search import preset, search
    from powerband.tune.search.space import by_qualified_name

    with exit_on_signal(), budget_progress_bar(options.seconds) as progress:
        result = search.Search(recipe, stage, resolved.config, options, progress).run()
        result = with_scores(result, stage, own_settings(recipe, arguments), options.score_seconds, progress)
    path = preset.write_preset(result, recipe.name, arguments)
    settings = ["setup=tuned"]
    if resolved.file:  # its settings would override those of the preset
        found = by_qualified_name(result.space, result.best.setting)
        settings = [f"{name}={value_text(value)}" for name, value in found.items()]
    use = shlex.join([recipe.name, *preset.remaining_arguments(result, arguments), *settings])
    summary = preset.table(result)
    return path, lambda page: f"{summary}\n\npreset: {path}\nmap: {page}\nuse it: powerband train {use}"


def _score(
    recipe: Recipe, stage: str, resolved: ResolvedConfig, options: ScoreOptions, arguments: list[str]
) -> tuple[Path, Callable[[Path], str]]:
    """Searches for the time to a score. The arguments and the result are those of `_throughput`."""
    began = time.monotonic()
    if not recipe.score:
        raise ConfigError(
            f"Recipe '{recipe.name}' names no score of its evaluations, so objective=score does not work with it. Set "
            f"Recipe.score, or write objective=throughput."
        )
    goal = options.goal(recipe.score)
    from powerband.core.telemetry.console import budget_progress_bar
    from powerband.tune.measure.in_subprocesses import short_run
    from powerband.tune.score import layout, preset
    from powerband.tune.score.search import search_and_verify
    from powerband.tune.score.setting_space import SettingSpace, fixed_settings, usable_algorithms
    from powerband.tune.score.study import SharedStudy
    from powerband.tune.score.trials.own_cores import check_parallel
    from powerband.tune.score.trials.scheduler import TrialScheduler

    config = resolved.config
    check_parallel(options.parallel, config.run)
    own_stage = "" if stage == recipe.default_stage else stage
    key = TunedKey(recipe.name, recipe.task_of(config), recipe.algorithm_of(config), recipe.task, "score", own_stage)
    kept = own_settings(recipe, arguments)
    new = f"runs/{key.name}-{time.strftime('%Y%m%d-%H%M%S')}" + (f"-{os.getpid()}" if options.storage else "")
    folder = Path(options.study_dir or new).expanduser().absolute()
    if not options.study_dir:
        print(f"powerband: study_dir={folder}: the same command with this option continues the search", file=sys.stderr)
    with exit_on_signal(), contextlib.ExitStack() as own, budget_progress_bar(options.seconds) as progress:
        progress("present settings: rate", 0.0)
        measured = short_run(recipe, stage, config, FIRST_RATE_S, probe=False)
        if measured is None or not measured.facts[0].iterations:
            raise ConfigError("Nothing was measured: the run ended early. Remove the setting that ends it.")
        name = shlex.join([recipe.name, stage, *kept, f"target={goal:g}"])
        study = SharedStudy(options.storage, folder, name, measured.steps_per_s, platform.node(), config.run.seed)
        own.callback(study.close)

        def found_layout() -> dict[str, Any]:
            found = layout.layout_from_preset(recipe, key)
            if found is None:
                found = layout.layout_from_search(recipe, stage, config, options.seconds, progress)
            return found

        # Trials in parallel have a part of the cores, for which no layout was measured.
        faster = layout.layout_of_study(study, found_layout) if options.parallel == 1 else {}
        configs = usable_algorithms(recipe, stage, resolved, kept, configure)
        space = SettingSpace(recipe, stage, configs, fixed_settings(resolved), faster)
        trials = TrialScheduler(space, kept, options, study, folder, config.run.seed, progress, began)
        if notice := trials.notice():
            print(f"powerband: {notice}", file=sys.stderr)
        result = search_and_verify(trials)
    path = preset.write_preset(result, kept)
    summary = preset.table(result)
    words = preset.use(result, kept, written_out=bool(resolved.file))
    use = f"\nuse it: powerband train {words}" if result.chosen is not None else ""
    return path, lambda page: f"{summary}\n\nstudy: {folder}\npreset: {path}\npage: {page}{use}"


def own_settings(recipe: Recipe, arguments: list[str]) -> list[str]:
    """Returns the user's arguments that every trial run of a search receives.

    Args:
        recipe: Recipe of the search.
        arguments: Command line after the recipe's name. Its stage, and options that `tune` sets for each trial, are
            removed, also under their old names.
    """
    from powerband.tune.score.trials.trial import OWN_OPTIONS

    arguments = arguments[1:] if arguments and arguments[0] in recipe.stages else arguments
    own = {f"{section}{no}{name}" for name in OWN_OPTIONS for section in ("", "run.") for no in ("", "no_")}
    own |= {f"no_run.{name}" for name in OWN_OPTIONS}
    targets = {old: new if isinstance(new, str) else new[0] for old, new in recipe.old_names.items()}
    return split_named_options(arguments, (*own, *(old for old, new in targets.items() if new in own)))[1]
