"""Catalogue: finds recipes by name, and turns the arguments after a recipe's name into its configuration."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from powerband.cli.trust import OPTION, refuse_stored_imports, split_trust
from powerband.core.config import ResolvedConfig, resolve
from powerband.core.config.command_line import checked_choice, wants_help
from powerband.core.config.flags import COMMAND_LINE
from powerband.core.config.presets import presets
from powerband.core.config.run_config import RunConfig
from powerband.core.config.saved import named_run, saved_algorithm
from powerband.core.config.schema import fields_table
from powerband.core.config.sizes import LOOPS, divisible_defaults
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.core.machine.device import expected_ranks
from powerband.core.ranks import restarts
from powerband.core.recipe import Recipe, load_object
from powerband.core.regular_files import read_object

RECIPES = ("uav", "snakes", "metaworld", "sketchnav", "libero", "gym")
"""Built-in recipes: sub-packages of ``powerband.recipes``."""
CONFIG_FILE = re.compile(r"--config($|=)|config=")
"""Arguments that name a configuration file: ``--config FILE``, ``--config=FILE`` and ``config=FILE``."""
GROUP = "powerband.recipes"
"""Entry point group of recipes in other packages; each value is a module with ``RECIPE``, or ``module:RECIPE``."""


def installed() -> dict[str, EntryPoint]:
    """Returns recipe name -> entry point for the recipes of other installed packages, without importing them."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in RECIPES}


@functools.cache
def load(name: str) -> Recipe:
    """Imports a recipe and returns it with the attribute `name` set to the argument `name`.

    Args:
        name: Name of a built-in or installed recipe, or the path of a module that has ``RECIPE``.

    Raises:
        ConfigError: The recipe is unknown, or the module has no ``RECIPE``.
    """
    if name in RECIPES:
        return importlib.import_module(f"powerband.recipes.{name}").RECIPE
    points = installed()
    if name.endswith(".py") or re.fullmatch(r"python[0-9.]*", name):
        raise ConfigError(
            f"{shortened(name)} is not the name of a recipe. To profile or audit a script, write two dashes "
            f"before its command: powerband profile -- python train.py."
        )
    if name not in points and "." not in name:
        checked_choice(name, (*RECIPES, *points), "recipe")
    module, _, attribute = (points[name].value if name in points else name).partition(":")
    try:
        found = vars(importlib.import_module(module)).get(attribute or "RECIPE")
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"Recipe '{shortened(name)}': there is no module {shortened(error.name)}. Install its package, or add its "
            f"folder to PYTHONPATH."
        ) from None
    if not isinstance(found, Recipe):
        raise ConfigError(
            f"Recipe '{name}': module {module} has no {attribute or 'RECIPE'} of type powerband.core.recipe.Recipe. "
            f"Define it, or name another module."
        )
    return replace(found, name=name)


def load_stored(name: str, folder: Path, trust: bool) -> Recipe:
    """Imports the recipe of a stored run, if it is installed or trusted.

    Args:
        name: Name of the recipe in ``run.json`` of the run folder.
        folder: The run folder, for the error message.
        trust: Whether modules that are not installed as recipes may be imported.

    Raises:
        ConfigError: The folder names a module that is not an installed recipe, and `trust` is false.
    """
    if not trust and name not in RECIPES and name not in installed():
        raise ConfigError(
            f"{folder} names the module '{shortened(name)}', which is not an installed recipe. Importing it runs its "
            f"code. If you trust the folder, add {OPTION}."
        )
    return load(name)


def configure(name: str, arguments: list[str]) -> tuple[Recipe, str, ResolvedConfig]:
    """Turns the arguments after a recipe's name into its configuration.

    Args:
        name: Name of the recipe.
        arguments: Stage, if any, and ``NAME=VALUE`` arguments. ``--trust`` allows every import that a stored run names.

    Returns:
        (recipe, name of the stage, configuration with the source of each value).

    Raises:
        ConfigError: The recipe or stage is unknown, the configuration refuses an argument, or a stored run would import
            a module and is not trusted.
    """
    trust, arguments = split_trust(arguments)
    recipe = load(name)
    stage = ""
    if arguments and not arguments[0].startswith("-") and "=" not in arguments[0]:
        try:
            stage, arguments = checked_choice(arguments[0], recipe.stages, f"stage of {name}"), arguments[1:]
        except ConfigError as error:
            raise ConfigError(f"{error} An option needs a value: write {shortened(arguments[0])}=VALUE.") from None
    config_file = os.environ.get(recipe.config_variable, "") if recipe.config_variable else ""
    if config_file and not any(CONFIG_FILE.match(each) for each in arguments):
        arguments = ["--config", config_file, *arguments]
    resolved = resolve(
        recipe.Config,
        arguments,
        variants=recipe.variants,
        old=recipe.old_options,
        sections=recipe.sections,
        help_command=f"powerband train {name} --help",
        recipe=name,
        task_settings=load_object(recipe.task_settings) if recipe.task_settings is not None else None,
        task=recipe.task,
        stage="" if stage == recipe.default_stage else stage,
        resumed=restarts.resumed,
    )
    stored, notices = _stored_folder(resolved), []
    if stored is not None and not trust:
        refuse_stored_imports(recipe, resolved.config, stored, resolved.sources)
    if trust and stored is None:
        notices.append(f"{OPTION}: no effect without resume=RUN or the config.json of a run.")
    stage = stage or resolved.stage or _resumed_stage(recipe, resolved) or recipe.default_stage
    used = recipe.sections[recipe.algorithm_of(resolved.config)] if recipe.algorithms else LOOPS
    ranks = expected_ranks(resolved.config.run)
    config, rounded = divisible_defaults(resolved.config, resolved.sources, used, ranks)
    resolved = replace(resolved, config=config)
    notices = [*resolved.notices, *notices, *recipe.notices_about(resolved.config), *filter(None, [rounded])]
    resolved = replace(resolved, config=recipe.finalized(resolved.config, stage), notices=tuple(notices))
    if resolved.config.run.env_steps < 1:
        raise ConfigError("env_steps=0 is below 1. Write env_steps=1 or more.")
    if resolved.config.run.resume:
        folder = named_run(resolved.config.run.resume, "resume")
        _refuse_run_dir(resolved, folder)
        _refuse_other_algorithm(recipe.algorithm_of(resolved.config), folder)
    return recipe, stage, resolved


def _resumed_stage(recipe: Recipe, resolved: ResolvedConfig) -> str:
    """Stage of the run that is resumed; "" without one, or if it has no stage of this recipe."""
    if not resolved.config.run.resume:
        return ""
    stage = read_object(named_run(resolved.config.run.resume, "resume") / "run.json").get("stage")
    return stage if isinstance(stage, str) and stage in recipe.stages else ""


def _stored_folder(resolved: ResolvedConfig) -> Path | None:
    """Folder of the run that stores settings of a configuration, by ``resume`` or ``--config``; None without one."""
    if resolved.config.run.resume:
        return named_run(resolved.config.run.resume, "resume")
    with contextlib.suppress(ConfigError):
        return named_run(resolved.file) if resolved.file else None
    return None


def _refuse_run_dir(resolved: ResolvedConfig, folder: Path) -> None:
    """Refuses ``run_dir`` together with ``resume``, unless it names the same folder."""
    other = resolved.config.run.run_dir
    if other and resolved.sources["run.run_dir"] == COMMAND_LINE and Path(other).expanduser().absolute() != folder:
        raise ConfigError(
            f"run_dir={shortened(other)} together with resume={shortened(folder)}: a resumed run continues in "
            f"its own folder. Leave run_dir out. To keep the old run as it is, copy its folder, and resume the copy."
        )


def _refuse_other_algorithm(now: str, folder: Path) -> None:
    """Refuses another algorithm than that of the resumed run, whose networks have other shapes."""
    before = saved_algorithm(folder)
    if before and now and before != now:
        raise ConfigError(
            f"algo={now} together with resume={shortened(folder)}: this run was trained with algo={before}, and a "
            f"resume cannot change it. Leave algo out, or start a new run without resume."
        )


def take_recipe(command: str, usage: str, arguments: list[str]) -> tuple[str | None, list[str]]:
    """Splits the recipe's name from its arguments; prints help if the arguments ask for it.

    Args:
        command: The command, such as ``train``.
        usage: Usage text after the command, for the help.
        arguments: Command line after the command.

    Returns:
        (name of the recipe, remaining arguments); the name is None if help was printed.

    Raises:
        ConfigError: There are no arguments, or no recipe has this name.
    """
    if not arguments:
        raise ConfigError(
            f"powerband {command} needs a recipe. Write powerband {command} RECIPE with one of "
            f"{', '.join([*RECIPES, *installed()])}, or powerband {command} --help."
        )
    if arguments[0] in ("-h", "--help"):
        print(f"powerband {command} {usage}")
        print(fields_table(RunConfig, only=COMMON_OPTIONS, title="options of every recipe"))
        print("\n".join(["", "recipes:", *recipe_lines()]))
        print(f"\n`powerband {command} RECIPE --help` lists all settings of a recipe.")
        return None, []
    name = arguments[0]
    if name.startswith("-") or "=" in name:
        raise ConfigError(
            f"'{shortened(name)}' stands in place of the recipe, which comes first. Write powerband {command} RECIPE "
            f"{shortened(' '.join(arguments))} with one of {', '.join([*RECIPES, *installed()])}."
        )
    recipe = load(name)
    if wants_help(arguments[1:]):
        print(recipe_help(name, recipe))
        return None, []
    return name, arguments[1:]


def recipe_lines() -> list[str]:
    """Returns one line of text per built-in and installed recipe, with its name and summary.

    Recipes of other packages are not imported; their lines name the module instead.
    """
    lines = [f"  {name:<10} {load(name).summary}" for name in RECIPES]
    return lines + [f"  {name:<10} from {point.value}" for name, point in installed().items()]


COMMON_OPTIONS = ("env_steps", "time_limit_s", "run_dir", "resume", "seed", "gpus", "nproc", "threads")
"""Options of every recipe that help lists first."""


def recipe_help(name: str, recipe: Recipe) -> str:
    """Returns the help text of a recipe: stages, variants, presets, common options, then all options."""
    stages = [f"{stage} (default)" if stage == recipe.default_stage else stage for stage in recipe.stages]
    lines = [f"powerband train {name} [STAGE] [NAME=VALUE ...]", "", recipe.summary, ""]
    lines += [f"stages:    {', '.join(stages)}", f"variants:  {', '.join(recipe.variants) or 'none'}  (variant=NAME)"]
    lines += [f"presets:   {', '.join(presets()) or 'none'}  (setup=NAME)", "file:      --config FILE.yaml", ""]
    lines += ["NAME=VALUE and --NAME VALUE are the same; --NAME and --no-NAME set true and false."]
    lines += ["The section of a name may be left out if the name is unique."]
    common_paths = tuple(f"run.{option}" for option in COMMON_OPTIONS)
    common = fields_table(recipe.Config, only=common_paths, title="common options")
    return "\n".join(lines) + f"\n{common}\n{fields_table(recipe.Config)}"
