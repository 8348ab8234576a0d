"""Commands that train and evaluate. They import torch only after the configuration has been checked."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from powerband.cli.arguments import RECIPE_USAGE, take_run
from powerband.cli.catalogue import configure, load_stored, take_recipe
from powerband.cli.trust import refuse_stored_imports, split_trust
from powerband.core.config import ResolvedConfig, from_json, resolve, stored_config
from powerband.core.config.command_line import print_or_write, split_json_option, split_named_options, wants_help
from powerband.core.config.flags import from_arguments
from powerband.core.config.old_options import OldOptions
from powerband.core.config.saved import named_run, recipe_of
from powerband.core.config.schema import fields_table
from powerband.core.config.sizes import largest_valid
from powerband.core.config.values import parse_value
from powerband.core.errors import ConfigError
from powerband.core.recipe import Recipe, load_object
from powerband.core.run_folder import refuse_links

EVAL_USAGE = "RUN [best] [NAME=VALUE ...]"
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
    from powerband.core.ranks import launch, restarts

    notice = launch.set_rank_from_slurm()  # first, because sizes depend on the number of ranks
    recipe, stage, resolved = configure(name, arguments)
    if restarts.reported():
        return 0
    launch.end_with_launcher()
    settings = resolved.config.run
    if not settings.resume:  # what has been trained already may continue
        recipe.refuse_held_out(settings.seed)
    elastic = launch.is_elastic(settings)
    if elastic:
        largest_valid(partial(recipe.check_sizes, resolved.config), launch.world_size(settings))
    else:
        recipe.check_sizes(resolved.config, launch.world_size(settings))
    if stage in recipe.interactive:
        return _interact(recipe, stage, resolved, target)
    new_folder = "" if settings.run_dir or settings.resume else _new_folder(name, resolved.variant)
    status = launch.launch(settings, typed, new_folder)
    if status is not None:
        return status
    if launch.is_leading_process():
        for line in filter(None, (*resolved.notices, notice)):
            print(f"powerband: {line}", file=sys.stderr)
    if restarts.new_folder():
        settings = replace(settings, run_dir=restarts.new_folder())
    config, restarted = _continued(recipe, replace(resolved.config, run=settings))
    settings = config.run
    from powerband.core.run.run import Run

    restarts.note_status(0)
    with contextlib.redirect_stdout(sys.stderr) if target else contextlib.nullcontext():
        try:
            with Run.start(
                config,
                recipe=name,
                stage=stage,
                argv=typed,
                restarted=restarted,
                new_folder=new_folder,
                check_sizes=recipe.check_sizes if elastic else None,
                score=recipe.score,
            ) as run:
                run.describe({"recipe": recipe.choices_of(run.config)})
                figures = recipe.run_stage(stage, run.config, run)
        except OSError as error:
            folder = (
                named_run(settings.resume) if settings.resume else Path(settings.run_dir or new_folder).expanduser()
            )
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
    restarts.note_status(run.exit_status)
    return run.exit_status


def _interact(recipe: Recipe, stage: str, resolved: ResolvedConfig, target: str) -> int:
    """Runs an interactive stage in this process, without a run folder, until the person ends it."""
    for line in resolved.notices:
        print(f"powerband: {line}", file=sys.stderr)
    from powerband.core.machine import rendering

    rendering.prepare()
    with contextlib.redirect_stdout(sys.stderr) if target else contextlib.nullcontext():
        load_object(recipe.stages[stage])(resolved.config)
    if target:
        print_or_write({"recipe": recipe.name, "stage": stage}, target)
    return 0


def _new_folder(recipe: str, variant: str) -> str:
    """Returns the folder of a new run without ``run_dir``, named by recipe, variant and time.

    A random suffix separates runs that start in the same second, such as those of a job array.
    """
    return "runs/" + "-".join(filter(None, (recipe, variant, time.strftime("%Y%m%d-%H%M%S"), os.urandom(2).hex())))


def _continued(recipe: Recipe, config: Any) -> tuple[Any, bool]:
    """Returns the configuration with which a restarted rank continues, and whether this rank was restarted.

    A rank that may be restarted and finds a run in its folder continues it with the saved configuration, which contains
    the choices that were measured at the start. Without a complete checkpoint it starts the run again. With ``resume``
    the configuration names the run already, see `powerband.core.ranks.restarts.resumed`.
    """
    from powerband.core.ranks import restarts
    from powerband.core.run.checkpoints.checkpoint import CheckpointError, resolve_resume
    from powerband.core.run.folders.roll_call import OF_A_MACHINE

    folder = Path(config.run.run_dir).expanduser()
    if restarts.job() and config.run.resume:
        return config, restarts.job() in restarts.jobs_of(named_run(config.run.resume, "resume"))
    if not restarts.job() or not config.run.run_dir or not (folder / "run.json").exists():
        return config, False
    try:
        resolve_resume(str(folder))
        saved = from_json(recipe.Config, (folder / "config.json").read_text(encoding="utf-8"), str(folder))
    except (CheckpointError, OSError):
        return config, True
    machine = {name: getattr(config.run, name) for name in OF_A_MACHINE}  # the saved ones are those of rank 0
    return replace(saved, run=replace(saved.run, **{**machine, "resume": str(folder), "run_dir": ""})), True


@dataclass(frozen=True)
class EvaluationCall:
    """What one call of ``powerband eval`` evaluates, and how.

    Attributes:
        recipe: Recipe of the run.
        config: Configuration of the run.
        folder: The run folder, or the folder of one of its checkpoints.
        options: Options of the evaluation, an instance of the recipe's `Evaluation`.
        notices: Messages for the user.
    """

    recipe: Recipe
    config: Any
    folder: Path
    options: Any
    notices: tuple[str, ...] = ()


def configure_evaluation(arguments: list[str]) -> EvaluationCall | None:
    """Turns the arguments after ``powerband eval`` into the evaluation that they describe.

    Returns:
        The evaluation; None if the arguments asked for help, which was printed.

    Raises:
        ConfigError: The run is missing or not trusted, or an option is invalid.
    """
    arguments, notices = _run_first(arguments)
    named = arguments[0] if arguments else ""
    run, arguments = take_run("eval", EVAL_USAGE, arguments)
    if run is None:
        return None
    folder = run
    refuse_links(folder)
    trust, arguments = split_trust(arguments)
    recipe = load_stored(recipe_of(folder), folder, trust)
    if recipe.evaluate is None or recipe.Evaluation is None:
        raise ConfigError(f"Recipe '{recipe.name}' has no evaluation. For its curves, run powerband report {folder}.")
    options_type = load_object(recipe.Evaluation)
    if wants_help(arguments):
        print(f"powerband eval {folder} [best] [NAME=VALUE ...]\n\n{fields_table(options_type)}")
        return None
    if arguments[:1] == ["best"]:
        arguments[0] = "eval_best=true"
    best, arguments = split_named_options(arguments, ("eval_best",))
    old = OldOptions(recipe.old_evaluation_names)
    resolved = resolve(options_type, arguments, old=old, help_command=f"powerband eval {folder} --help")
    config = stored_config(folder, recipe.Config, recipe.old_names)
    if not trust:
        refuse_stored_imports(recipe, config, folder)
    from powerband.core.run.checkpoints.best_checkpoint import best_checkpoint
    from powerband.core.run.checkpoints.checkpoint import checkpoint_of

    options, notices = resolved.config, [*notices, *resolved.notices]
    if recipe.held_out_seeds:
        recipe.refuse_held_out(config.run.seed, options.seed)
    if recipe.finalize_evaluation is not None:
        options, messages = load_object(recipe.finalize_evaluation)(config, options)
        notices += messages
    checkpoint = checkpoint_of(named)
    if best and parse_value(from_arguments(best)[0], bool, True):
        checkpoint, reason = best_checkpoint(named, recipe.score)
        notices.append(f"best: {reason}. Evaluated is {checkpoint or 'the newest checkpoint'}.")
    return EvaluationCall(recipe, config, checkpoint or folder, options, tuple(notices))


def _run_first(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Moves the run that ``--pretrained`` names to the front of the arguments of ``powerband eval``.

    The guide's code names the weights by this option and the configuration of their network by ``--config``. A run
    folder contains its configuration, so that the latter is dropped with a notice.

    Returns:
        The arguments, and notices for the user.

    Raises:
        ConfigError: The first argument names a run too.
    """
    named, others = split_named_options(arguments, ("pretrained",))
    if not named:
        return arguments, []
    flag = from_arguments(named)[0]
    if others and not others[0].startswith("-") and "=" not in others[0]:
        raise ConfigError(f"{flag} and {others[0]} both name a run. Write only one of them.")
    dropped, others = split_named_options(others, ("config",))
    notices = [f"{flag}: names the checkpoint to evaluate, as powerband eval {flag.value} does."]
    notices += [
        f"{each}: not read, because the run folder has the settings of its policy." for each in from_arguments(dropped)
    ]
    return [str(flag.value or ""), *others], notices


def evaluate(arguments: list[str]) -> int:
    """Evaluates a run, or one of its checkpoints, with the evaluation that its recipe defines.

    Args:
        arguments: Command line after ``powerband eval``.

    Returns:
        Exit status, 0 for success.
    """
    target, arguments = split_json_option(arguments)
    call = configure_evaluation(arguments)
    if call is None:
        return 0
    for line in call.notices:
        print(f"powerband: {line}", file=sys.stderr)
    assert call.recipe.evaluate is not None
    from powerband.core.machine import rendering
    from powerband.core.run.checkpoints.checkpoint import checkpoints_in

    newest = next(iter(checkpoints_in(call.folder / "checkpoints")), call.folder)  # of a run; else it is a checkpoint
    print(f"powerband: evaluates {os.path.relpath(newest)}", file=sys.stderr)
    rendering.prepare()
    with contextlib.redirect_stdout(sys.stderr) if target else contextlib.nullcontext():
        table = load_object(call.recipe.evaluate)(call.config, call.folder, call.options)
    if target:
        print_or_write(table, target)
    return 0
