"""Commands that train and evaluate. They import torch only after the configuration has been checked."""

from __future__ import annotations

import contextlib
import errno
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from powerband.cli.arguments import RECIPE_USAGE, take_run
from powerband.cli.catalogue import configure, load_stored, take_recipe
from powerband.cli.trust import refuse_stored_imports, split_trust
from powerband.core.config import from_json, resolve
from powerband.core.config.command_line import print_or_write, split_json_option, wants_help
from powerband.core.config.saved import named_run, recipe_of, saved_text
from powerband.core.config.schema import fields_table
from powerband.core.errors import ConfigError
from powerband.core.recipe import Recipe, load_object
from powerband.core.run_folder import refuse_links

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ESTALE)


def train(arguments: list[str]) -> int:
    """Trains a recipe: starts the ranks if there are several, otherwise runs the stage in this process.

    Args:
        arguments: Command line after ``powerband train``.

    Returns:
        Exit status: 0 for success, and 128 + its number if a signal ended the run after it had saved.
    """
    typed = ["train", *arguments]
    target, arguments = split_json_option(arguments)
    name, arguments = take_recipe("train", RECIPE_USAGE, arguments)
    if name is None:
        return 0
    recipe, stage, resolved = configure(name, arguments)
    from powerband.core.ranks import launch, restarts

    if restarts.reported():
        return 0
    notice = launch.set_rank_from_slurm()
    launch.end_with_launcher()
    settings = resolved.config.run
    recipe.check_sizes(resolved.config, launch.world_size(settings))
    new_folder = "" if settings.run_dir or settings.resume else _new_folder(name, resolved.variant)
    status = launch.launch(settings, typed, new_folder)
    if status is not None:
        return status
    if launch.is_leading_process():
        for line in filter(None, (*resolved.notices, notice)):
            print(f"powerband: {line}", file=sys.stderr)
    if new_folder:
        settings = replace(settings, run_dir=restarts.new_folder() or new_folder)
    config, restarted = _continued(recipe, replace(resolved.config, run=settings))
    settings = config.run
    from powerband.core.run.run import Run

    with contextlib.redirect_stdout(sys.stderr) if target else contextlib.nullcontext():
        try:
            with Run.start(config, recipe=name, stage=stage, argv=typed, restarted=restarted) as run:
                figures = recipe.run_stage(stage, run.config, run)
        except OSError as error:
            folder = named_run(settings.resume) if settings.resume else Path(settings.run_dir).expanduser()
            if error.errno in DISK_FULL:
                raise ConfigError(
                    f"{folder} cannot be written: {error.strerror}. Its checkpoints are complete. Free some space, "
                    f"then continue with powerband train {name} resume={folder}."
                ) from error
            path = Path(error.filename if isinstance(error.filename, str) else "/").absolute()
            if error.errno in REFUSED and path.is_relative_to(folder.absolute()):
                raise ConfigError(
                    f"{path} cannot be written: {error.strerror}. Its checkpoints are complete. Correct the "
                    f"permissions, or copy the run folder, then continue with powerband train {name} resume=FOLDER."
                ) from error
            raise
    if target and launch.is_leading_process():
        counters = {"env_steps": run.env_steps, "grad_steps": run.grad_steps}
        print_or_write({"recipe": name, "stage": stage, "run_dir": str(run.dir), **counters, **figures}, target)
    return run.exit_status


def _new_folder(recipe: str, variant: str) -> str:
    """Returns the folder of a new run without ``run_dir``, named by recipe, variant and time."""
    return "runs/" + "-".join(filter(None, (recipe, variant, time.strftime("%Y%m%d-%H%M%S"))))


def _continued(recipe: Recipe, config: Any) -> tuple[Any, bool]:
    """Returns the configuration with which a restarted rank continues, and whether this rank was restarted.

    A rank that may be restarted and finds a run in its folder continues it with the saved configuration, which contains
    the choices that were measured at the start. Without a complete checkpoint it starts the run again.
    """
    from powerband.core.ranks import restarts
    from powerband.core.run.checkpoint import CheckpointError, resolve_resume

    folder = Path(config.run.run_dir or ".").expanduser()
    if not restarts.job() or config.run.resume or not (folder / "run.json").exists():
        return config, False
    try:
        resolve_resume(str(folder))
        saved = from_json(recipe.Config, (folder / "config.json").read_text(encoding="utf-8"), str(folder))
    except (CheckpointError, OSError):
        return config, True
    return replace(saved, run=replace(saved.run, resume=str(folder), run_dir="")), True


def evaluate(arguments: list[str]) -> int:
    """Evaluates a run, or one of its checkpoints, with the evaluation that its recipe defines.

    Args:
        arguments: Command line after ``powerband eval``.

    Returns:
        Exit status, 0 for success.
    """
    target, arguments = split_json_option(arguments)
    named = arguments[:1]
    folder, arguments = take_run("eval", arguments)
    refuse_links(folder)
    trust, arguments = split_trust(arguments)
    recipe = load_stored(recipe_of(folder), folder, trust)
    if recipe.evaluate is None or recipe.Evaluation is None:
        raise ConfigError(f"Recipe '{recipe.name}' has no evaluation. For its curves, run powerband report {folder}.")
    options_type = load_object(recipe.Evaluation)
    if wants_help(arguments):
        print(f"powerband eval {folder} [NAME=VALUE ...]\n\n{fields_table(options_type)}")
        return 0
    options = resolve(options_type, arguments, help_command=f"powerband eval {folder} --help").config
    file = folder / "config.json"
    config = from_json(recipe.Config, saved_text(file), str(file), recipe.old_names)
    if not trust:
        refuse_stored_imports(recipe, config, folder)
    from powerband.core.machine import rendering
    from powerband.core.run.checkpoint import checkpoint_of

    rendering.prepare()
    with contextlib.redirect_stdout(sys.stderr) if target else contextlib.nullcontext():
        table = load_object(recipe.evaluate)(config, checkpoint_of(*named) or folder, options)
    if target:
        print_or_write(table, target)
    return 0
