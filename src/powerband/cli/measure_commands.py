"""Commands that measure: profile, estimate, bench and doctor."""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import fields
from functools import partial

from powerband.cli import catalogue
from powerband.cli.catalogue import configure, load, take_recipe
from powerband.cli.script_commands import PROFILE_USAGE, is_script_command, profile_script
from powerband.core.config import resolve
from powerband.core.config.command_line import (
    checked_choice,
    print_or_write,
    split_json_option,
    split_named_options,
    wants_help,
)
from powerband.core.config.schema import fields_table
from powerband.core.errors import ConfigError
from powerband.core.recipe import load_object

USAGE = {
    "profile": (
        "RECIPE [seconds=20] [probe=true] [--apply] [NAME=VALUE ...], or [seconds=30] [--try] -- python train.py ..."
    ),
    "estimate": "RECIPE [ranks=1,2,4,8] [price_per_hour=0] [NAME=VALUE ...]",
    "bench": "NAME [RECIPE] [NAME=VALUE ...]",
    "doctor": "[SECTION ...]",
}
"""Command -> its usage."""
BENCHMARKS: dict[str, str] = {
    "update-interval": "powerband.bench.update_interval:run",
    "num-envs": "powerband.bench.knobs:num_envs",
    "batch": "powerband.bench.knobs:batch",
    "precision": "powerband.bench.knobs:precision",
    "scaling": "powerband.bench.knobs:scaling",
    "peers": "powerband.bench.peers:peers",
}
"""Benchmark -> ``module:function``. It takes the arguments after the name and `configure`, and returns JSON."""


def profile(arguments: list[str]) -> int:
    """Runs a recipe, or a script after ``--``, for some seconds and reports where its time goes and what limits it.

    Args:
        arguments: Command line after ``powerband profile``.

    Returns:
        Exit code of the bottleneck, see `powerband.tune.diagnose.causes.CAUSES`; 0 in a process that a launcher
        started.
    """
    if is_script_command(arguments):
        return profile_script(arguments)
    typed = ["profile", *arguments]
    target, arguments = split_json_option(arguments)
    name, arguments = take_recipe("profile", USAGE["profile"], arguments)
    if name is None:
        from powerband.tune.diagnose.causes import causes_table

        print(f"\nexit status, by cause:\n{causes_table()}")
        print(f"\nof any training script, unchanged:\n  powerband profile {PROFILE_USAGE}")
        return 0
    own_arguments, arguments = split_named_options(arguments, ("seconds", "probe", "apply"))
    from powerband.tune import profile as profiles
    from powerband.tune.measure import ranks_report

    options = resolve(profiles.ProfileOptions, own_arguments, help_command=f"powerband profile {name} --help").config
    recipe, stage, resolved = configure(name, arguments)
    if resolved.config.run.resume:
        raise ConfigError("profile does not support resume: it keeps no state. Omit resume; the rates are the same.")
    from powerband.core.ranks import launch

    settings = resolved.config.run
    recipe.check_sizes(resolved.config, launch.world_size(settings))
    with ranks_report.ranks_report_file() as ranks:
        status = launch.launch(settings, typed)
        if status is not None:
            ranks_result = ranks.read()
            if status or ranks_result is None:
                return status or 1
            print_or_write(ranks_result["table"] if target else ranks_result["text"], target)
            return ranks_result["table"]["exit_code"]
    for line in resolved.notices if launch.is_leading_process() else ():
        print(f"powerband: {line}", file=sys.stderr)
    result = profiles.profile(recipe, stage, resolved.config, options)
    if launch.is_rank():  # a status other than 0 would read as a rank that failed
        if result.measurement.leads and not ranks_report.write_ranks_report(str(result), result.to_dict()):
            print_or_write(result.to_dict() if target else str(result), target)
        return 0
    print_or_write(result.to_dict() if target else str(result), target)
    return result.diagnosis.exit_code


def estimate(arguments: list[str]) -> int:
    """Runs a recipe for some seconds and estimates the duration of a complete run for several numbers of ranks.

    Args:
        arguments: Command line after ``powerband estimate``.

    Returns:
        Exit status, 0 for success.
    """
    target, arguments = split_json_option(arguments)
    name, arguments = take_recipe("estimate", USAGE["estimate"], arguments)
    from powerband.tune.predict import estimate as estimates

    if name is None:
        print(f"\n{fields_table(estimates.EstimateOptions)}")
        return 0
    own_arguments, arguments = split_named_options(
        arguments, tuple(field.name for field in fields(estimates.EstimateOptions))
    )
    options = resolve(estimates.EstimateOptions, own_arguments, help_command="powerband estimate --help").config
    recipe, stage, resolved = configure(name, arguments)
    if resolved.config.run.resume:
        raise ConfigError("estimate does not support resume. For the time left of a run, write powerband watch RUN.")
    from powerband.core.ranks import launch
    from powerband.core.telemetry.console import budget_progress_bar
    from powerband.doctor.checks.collectives import reduce_row

    if launch.is_rank():
        raise ConfigError(
            "estimate runs in one process. Start it without a launcher; it predicts several ranks itself."
        )
    for line in resolved.notices:
        print(f"powerband: {line}", file=sys.stderr)
    with budget_progress_bar((len(options.ranks) + 1) * (options.seconds + estimates.START_S)) as progress:
        result = estimates.estimate(recipe, stage, resolved.config, options, reduce_row, progress)
    print_or_write({"recipe": name, "stage": stage, **result.to_dict()} if target else str(result), target)
    return 0


def bench(arguments: list[str]) -> int:
    """Runs a benchmark and prints its results.

    Args:
        arguments: Command line after ``powerband bench``.

    Returns:
        Exit status, 0 for success.
    """
    target, arguments = split_json_option(arguments)
    if not arguments or wants_help(arguments[:1]):
        print("powerband bench NAME [RECIPE] [NAME=VALUE ...]\n\n" + "\n".join(f"  {name}" for name in BENCHMARKS))
        return 0
    name = checked_choice(arguments[0], BENCHMARKS, "benchmark")
    if wants_help(arguments[1:]):
        module = importlib.import_module(BENCHMARKS[name].split(":")[0])
        schema = getattr(module, "OPTIONS", {}).get(name, module.Options)
        print(f"{(module.__doc__ or '').strip()}\n\n{fields_table(schema)}")
        return 0
    with contextlib.redirect_stdout(sys.stderr) if target == "-" else contextlib.nullcontext():
        result = load_object(BENCHMARKS[name])(arguments[1:], configure)
    if target:
        print_or_write(result, target)
    return 0


def doctor(arguments: list[str]) -> int:
    """Checks this machine, section by section.

    Args:
        arguments: Command line after ``powerband doctor``.

    Returns:
        Exit status: 1 if a check failed, else 0.
    """
    from powerband.doctor.checkup import SECTIONS, run

    target, arguments = split_json_option(arguments)
    if wants_help(arguments):
        print(f"powerband doctor {USAGE['doctor']}\n\n" + "\n".join(f"  {k:<12} {v}" for k, v in SECTIONS.items()))
        return 0
    chosen = [checked_choice(word, SECTIONS, "section of doctor") for word in arguments]
    result = run(chosen, {name: partial(load, name) for name in catalogue.RECIPES}, show=target != "-")
    if target:
        print_or_write(result, target)
    return result["exit_code"]
