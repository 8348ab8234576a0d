"""The command line: verbs, and the one table of recipes. It knows no training and imports torch only to train."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from types import ModuleType

from powerband import __version__
from powerband.core.config import DEFAULT, ConfigError, Resolved, from_json, resolve, to_dict
from powerband.core.presets import presets
from powerband.core.run_folder import find_run
from powerband.core.schema import fields_table, value_text
from powerband.core.words import asks_help, emit, one_of, take_json, take_named

RECIPES = {
    "snakes": "3v3 snakes on one device, thousands of boards at a time: ddpg, bicnet, ppo with self-play",
    "gym": "any Gymnasium environment id, your own included: sac, ppo",
}
BENCHES: dict[str, str] = {
    "update-interval": "powerband.bench.update_interval:run",
    "num-envs": "powerband.bench.knobs:num_envs",
    "batch": "powerband.bench.knobs:batch",
    "precision": "powerband.bench.knobs:precision",
    "scaling": "powerband.bench.knobs:scaling",
    "peers": "powerband.bench.peers:peers",
}
"""Benchmark -> ``module:function`` that takes the words after the name and what reads a recipe's configuration; it
returns a JSON value."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# -- verbs --------------------------------------------------------------------------------------------------------


def train(words: list[str]) -> int:
    """Reads the configuration, starts ranks where several are asked for, else runs the stage."""
    typed = ["train", *words]
    target, words = take_json(words)
    name, words = _take_recipe("train", words)
    if name is None:
        return 0
    recipe, stage, resolved = _configure(name, words)
    from powerband.core import launch

    notice = launch.adopt_srun()
    settings = resolved.config.run
    if hasattr(recipe, "check"):
        recipe.check(resolved.config, launch.world_size(settings))
    status = launch.launch(settings, typed)
    if status is not None:
        return status
    if launch.leads():
        for line in filter(None, (*resolved.notices, notice)):
            print(f"powerband: {line}", file=sys.stderr)
    if not settings.run_dir and not settings.resume:
        parts = (name, resolved.variant, time.strftime("%Y%m%d-%H%M%S"))
        settings = replace(settings, run_dir="runs/" + "-".join(part for part in parts if part))
    from powerband.core.run import Run

    config = replace(resolved.config, run=settings)
    with contextlib.redirect_stdout(sys.stderr) if target else contextlib.nullcontext():
        try:
            with Run.start(config, recipe=name, stage=stage, argv=typed) as run:
                figures = recipe.STAGES[stage](config, run) or {}
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            folder = settings.resume or settings.run_dir
            raise ConfigError(
                f"{folder} cannot be written any more: {error.strerror}. Its checkpoints are whole. "
                f"Free space there, then go on: powerband train {name} resume={folder}."
            ) from error
    if target and launch.leads():
        counters = {"env_steps": run.env_steps, "grad_steps": run.grad_steps}
        emit({"recipe": name, "stage": stage, "run_dir": str(run.dir), **counters, **figures}, target)
    return 0


def evaluate(words: list[str]) -> int:
    """Hands a run folder to its recipe's ``evaluate``; the recipe's ``Evaluation`` says what can be set."""
    target, words = take_json(words)
    folder, words = _take_run("eval", words)
    facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    recipe = _load(facts["recipe"])
    if not hasattr(recipe, "evaluate"):
        raise ConfigError(
            f"recipe {facts['recipe']} has no evaluation. Write powerband report {folder} for its curves."
        )
    if asks_help(words):
        print(f"powerband eval {folder} [NAME=VALUE ...]\n\n{fields_table(recipe.Evaluation)}")
        return 0
    options = resolve(recipe.Evaluation, words, help_with=f"powerband eval {folder} --help").config
    config = from_json(recipe.Config, (folder / "config.json").read_text(encoding="utf-8"), str(folder / "config.json"))
    from powerband.core import rendering

    rendering.prepare()
    with contextlib.redirect_stdout(sys.stderr) if target else contextlib.nullcontext():
        table = recipe.evaluate(config, folder, options)
    if target:
        emit(table, target)
    return 0


def profile(words: list[str]) -> int:
    """Runs a recipe for some seconds and says where the time goes; the exit status is the cause's."""
    typed = ["profile", *words]
    target, words = take_json(words)
    name, words = _take_recipe("profile", words)
    if name is None:
        from powerband.tune.causes import causes_table

        print(f"\nexit status, by cause:\n{causes_table()}")
        return 0
    own, words = take_named(words, ("seconds", "apply"))
    from powerband.tune import profile as profiles

    options = resolve(profiles.Options, own, help_with=f"powerband profile {name} --help").config
    recipe, stage, resolved = _configure(name, words)
    if resolved.config.run.resume:
        raise ConfigError(
            "resume is nothing to profile: a profile keeps nothing. Leave it out, the rates are the same."
        )
    from powerband.core import launch

    settings = resolved.config.run
    if hasattr(recipe, "check"):
        recipe.check(resolved.config, launch.world_size(settings))
    with profiles.report_of_ranks() as ranks:
        status = launch.launch(settings, typed)
        if status is not None:
            found = ranks.read()
            if status or found is None:
                return status or 1
            emit(found["table"] if target else found["text"], target)
            return found["table"]["exit_code"]
    for line in resolved.notices if launch.leads() else ():
        print(f"powerband: {line}", file=sys.stderr)
    found = profiles.profile(recipe, stage, resolved.config, options)
    if launch.is_rank():  # a status other than 0 would read as a rank that failed
        if found.measurement.leads and not profiles.leave_report(found):
            emit(found.to_dict() if target else str(found), target)
        return 0
    emit(found.to_dict() if target else str(found), target)
    return found.diagnosis.exit_code


def tune(words: list[str]) -> int:
    """Searches the settings that are fastest on this machine and writes them as a preset."""
    target, words = take_json(words)
    name, words = _take_recipe("tune", words)
    if name is None:
        return 0
    own, words = take_named(words, ("seconds", "learning", "memory_gib"))
    from powerband.core import launch
    from powerband.tune import preset, search

    options = resolve(search.Options, own, help_with=f"powerband tune {name} --help").config
    recipe, stage, resolved = _configure(name, words)
    settings = resolved.config.run
    if launch.is_rank() or settings.resume or settings.nnodes != "1":
        said = "a launcher" if launch.is_rank() else "resume" if settings.resume else f"nnodes={settings.nnodes}"
        raise ConfigError(f"{said}: tune starts short runs of its own here. Write powerband tune {name} without it.")
    if hasattr(recipe, "check"):
        recipe.check(resolved.config, launch.world_size(settings))
    for line in resolved.notices:
        print(f"powerband: {line}", file=sys.stderr)
    from powerband.core.console import share_shown

    with share_shown(options.seconds) as progress:
        found = search.Search(recipe, stage, resolved.config, options, progress).run()
    path = preset.write_preset(found, name, words)
    from powerband.report.page import write_map

    page = write_map(path)
    if target:
        measured = json.loads(path.with_suffix(".tuning.json").read_text(encoding="utf-8"))
        emit({**measured, "preset": str(path), "map": str(page)}, target)
        return 0
    print(f"{preset.table(found)}\n\npreset: {path}\nmap: {page}")
    print(f"use it: powerband train {' '.join([name, *preset.kept_words(found, words)])} setup=tuned")
    return 0


def estimate(words: list[str]) -> int:
    """Runs a recipe's loop for some seconds and says what the whole run will take, on several numbers of ranks."""
    target, words = take_json(words)
    name, words = _take_recipe("estimate", words)
    from powerband.tune import estimate as estimates

    if name is None:
        print(f"\n{fields_table(estimates.Options)}")
        return 0
    own, words = take_named(words, tuple(field.name for field in fields(estimates.Options)))
    options = resolve(estimates.Options, own, help_with="powerband estimate --help").config
    recipe, stage, resolved = _configure(name, words)
    if resolved.config.run.resume:
        raise ConfigError("resume: a run that exists says itself how long it still takes. Write powerband watch RUN.")
    from powerband.core import launch
    from powerband.core.console import share_shown
    from powerband.doctor.collectives import reduce_row

    if launch.is_rank():
        raise ConfigError("estimate is one process that says what several ranks would take. Start it without launcher.")
    for line in resolved.notices:
        print(f"powerband: {line}", file=sys.stderr)
    with share_shown((len(options.ranks) + 1) * (options.seconds + estimates.START_S)) as progress:
        found = estimates.estimate(recipe, stage, resolved.config, options, reduce_row, progress)
    emit({"recipe": name, "stage": stage, **found.to_dict()} if target else str(found), target)
    return 0


def report(words: list[str]) -> int:
    """Writes the page of a run, or one that compares several, and says where it is."""
    target, words = take_json(words)
    page = next((Path(word.removeprefix("to=")) for word in words if word.startswith("to=")), None)
    words = [word for word in words if not word.startswith("to=")]
    folder, others = _take_run("report", words)
    from powerband.report.compare import write_comparison
    from powerband.report.page import write_page

    folders = [folder, *map(find_run, others)]
    written = write_comparison(folders, page) if others else write_page(folder, page)
    emit({"report": str(written)} if target else str(written), target)
    return 0


def watch(words: list[str]) -> int:
    """Follows a running job from its files until it ends; the job is not touched."""
    target, words = take_json(words)
    if target not in ("", "-"):
        raise ConfigError(
            f"watch prints one JSON value a line as it goes. Write powerband watch RUN --json > {target}."
        )
    folder, words = _take_run("watch", words)
    from powerband.report import watch as watching

    if asks_help(words):
        print(f"powerband watch {folder} [--csv] [--once] [every=SECONDS]\n\n{fields_table(watching.Options)}")
        return 0
    options = resolve(watching.Options, words, help_with=f"powerband watch {folder} --help").config
    with contextlib.suppress(KeyboardInterrupt):
        return watching.watch(folder, options, as_json=bool(target))
    return 0


def bench(words: list[str]) -> int:
    """Runs a benchmark of the table and prints what it measured."""
    target, words = take_json(words)
    if not words or asks_help(words[:1]):
        print("powerband bench NAME [RECIPE] [NAME=VALUE ...]\n\n" + "\n".join(f"  {name}" for name in BENCHES))
        return 0
    module, function = BENCHES[one_of(words[0], BENCHES, "benchmark")].split(":")
    own = importlib.import_module(module)
    if asks_help(words[1:]):
        print(f"{(own.__doc__ or '').strip()}\n\n{fields_table(getattr(own, 'Options', None) or own.Config)}")
        return 0
    with contextlib.redirect_stdout(sys.stderr) if target == "-" else contextlib.nullcontext():
        found = getattr(own, function)(words[1:], _configure)
    if target:
        emit(found, target)
    return 0


def doctor(words: list[str]) -> int:
    """Checks this machine, section by section; the exit status is 1 where a check failed."""
    from powerband.doctor.checkup import SECTIONS, run

    target, words = take_json(words)
    if asks_help(words):
        print(f"powerband doctor {VERBS['doctor'][1]}\n\n" + "\n".join(f"  {k:<12} {v}" for k, v in SECTIONS.items()))
        return 0
    chosen = [one_of(word, SECTIONS, "section of doctor") for word in words]
    found = run(chosen, {name: lambda name=name: _load(name) for name in RECIPES}, show=target != "-")
    if target:
        emit(found, target)
    return found["exit_code"]


def list_recipes(words: list[str]) -> int:
    """Recipes with their stages and variants, and the hardware presets."""
    target, words = take_json(words)
    if words:
        raise ConfigError(f"'{words[0]}' means nothing to list. Write powerband list, or powerband show {words[0]}.")
    table = {}
    for name, line in RECIPES.items():
        recipe = _load(name)
        table[name] = {"what": line, "stages": list(recipe.STAGES), "variants": list(recipe.VARIANTS)}
    setups = {name: str(path) for name, path in presets().items()}
    if target:
        emit({"recipes": table, "setups": setups}, target)
        return 0
    for name, row in table.items():
        print(f"{name:<10} {row['what']}")
        print(f"{'':<10} stages: {', '.join(row['stages'])}; variants: {', '.join(row['variants']) or 'none'}")
    print(f"{'setup=':<10} {', '.join(setups) or 'none'}")
    return 0


def show(words: list[str]) -> int:
    """The configuration that `train` would run with the same words, each value with its source."""
    target, words = take_json(words)
    name, words = _take_recipe("show", words)
    if name is None:
        return 0
    _, stage, resolved = _configure(name, words)
    if target:
        named = {"recipe": name, "stage": stage, "variant": resolved.variant, "notices": list(resolved.notices)}
        emit({**named, "config": to_dict(resolved.config), "sources": resolved.sources}, target)
        return 0
    for line in resolved.notices:
        print(f"powerband: {line}", file=sys.stderr)
    rows = [(path, value_text(attrgetter(path)(resolved.config)), source) for path, source in resolved.sources.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for path, value, source in rows:
        print(f"{path:<{widths[0]}}  {value:<{widths[1]}}  {'' if source == DEFAULT else source}".rstrip())
    return 0


VERBS: dict[str, tuple[Callable[[list[str]], int], str, str]] = {
    "train": (
        train,
        "RECIPE [STAGE] [NAME=VALUE ...]",
        "train: on CPU, one GPU, many GPUs, many machines",
    ),
    "eval": (evaluate, "RUN [NAME=VALUE ...]", "evaluate a checkpoint"),
    "profile": (
        profile,
        "RECIPE [seconds=20] [--apply] [NAME=VALUE ...]",
        "run it for some seconds: where the time goes, what binds it, what each knob would gain",
    ),
    "tune": (
        tune,
        "RECIPE [seconds=60] [learning=fixed] [memory_gib=0] [NAME=VALUE ...]",
        "find the fastest settings on this machine; setup=tuned loads them",
    ),
    "estimate": (
        estimate,
        "RECIPE [ranks=1,2,4,8] [price_per_hour=0] [NAME=VALUE ...]",
        "hours, memory and cost of a run before it starts, by its number of ranks",
    ),
    "report": (report, "RUN [RUN ...] [to=FILE.html]", "one self-contained HTML page about a run, or several compared"),
    "watch": (
        watch,
        "RUN [--csv] [--once] [every=SECONDS]",
        "follow a running job from its files, without touching it",
    ),
    "bench": (bench, "NAME [RECIPE] [NAME=VALUE ...]", "reproducible tables"),
    "doctor": (doctor, "[SECTION ...]", "this machine: GPUs, precision, copies, simulators, rendering, networks"),
    "list": (list_recipes, "", "recipes, stages, variants, hardware presets"),
    "show": (show, "RECIPE [NAME=VALUE ...]", "the resolved configuration, each value with its source"),
}


def main(words: list[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0, 1 where `doctor` found a fault, 2 for what a user can right."""
    words = sys.argv[1:] if words is None else words
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch and numba read it once, when they are imported
    try:
        if not words or words[0] in ("-h", "--help", "help"):
            print(_usage())
            return 0
        if words[0] == "--version":
            print(f"powerband {__version__}")
            return 0
        return VERBS[one_of(words[0], _verbs(), "verb")][0](words[1:])
    except ValueError as error:
        if not _is_for_users(error):
            raise
        print(f"powerband: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _is_for_users(error: ValueError) -> bool:
    """True where this package raised it, in words for users; a ValueError from a library keeps its traceback."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, ConfigError) or frames[-1].f_globals.get("__name__", "").startswith("powerband.")


# -- words --------------------------------------------------------------------------------------------------------


def _configure(name: str, words: list[str]) -> tuple[ModuleType, str, Resolved]:
    recipe = _load(name)
    help_with = f"powerband train {name} --help"
    stage = recipe.DEFAULT_STAGE
    if words and not words[0].startswith("-") and "=" not in words[0]:
        stage, words = one_of(words[0], recipe.STAGES, f"stage of {name}"), words[1:]
    sections = getattr(recipe, "SECTIONS", None)
    named = {"variants": recipe.VARIANTS, "renamed": recipe.RENAMED, "sections": sections, "help_with": help_with}
    named["recipe"] = name
    resolved = resolve(recipe.Config, words, **named)
    if hasattr(recipe, "settle"):
        resolved = replace(resolved, config=recipe.settle(resolved.config))
    if resolved.config.run.resume:
        folder = find_run(resolved.config.run.resume)
        trained = json.loads((folder / "run.json").read_text(encoding="utf-8")).get("recipe")
        if trained != name:
            raise ConfigError(f"{folder} is a run of {trained}, not of {name}. Write powerband train {trained} ...")
    return recipe, stage, resolved


def _load(name: str) -> ModuleType:
    return importlib.import_module(f"powerband.recipes.{one_of(name, RECIPES, 'recipe')}")


def _take_recipe(verb: str, words: list[str]) -> tuple[str | None, list[str]]:
    """(recipe, words after it); (None, ...) where help was asked for and given."""
    if not words or words[0] in ("-h", "--help"):
        lines = [f"  {name:<10} {line}" for name, line in RECIPES.items()]
        print(f"powerband {verb} {VERBS[verb][1]}\n\nrecipes:\n" + "\n".join(lines))
        print(f"\n`powerband {verb} RECIPE --help` lists what can be set.")
        return None, []
    name = one_of(words[0], RECIPES, "recipe")
    if asks_help(words[1:]):
        print(_recipe_help(name))
        return None, []
    return name, words[1:]


def _take_run(verb: str, words: list[str]) -> tuple[Path, list[str]]:
    if not words or words[0].startswith("-"):
        raise ConfigError(f"powerband {verb} needs a run. Write powerband {verb} runs/NAME, or powerband {verb} last.")
    return find_run(words[0]), words[1:]


# -- what is printed ----------------------------------------------------------------------------------------------


def _verbs() -> list[str]:
    return [name for name in VERBS if name != "bench" or BENCHES]


def _usage() -> str:
    lines = ["powerband VERB ...  trains policies with the accelerator in its power band", ""]
    for name in _verbs():
        _, arguments, what = VERBS[name]
        call = f"{name} {arguments}".strip()
        lines.append(f"  {call:<34} {what}" if len(call) <= 34 else f"  {call}\n{'':<36} {what}")
    lines += ["", "recipes:", *(f"  {name:<10} {line}" for name, line in RECIPES.items()), ""]
    lines.append("Every verb takes --json [FILE.json]. `powerband train RECIPE --help` lists what can be set.")
    return "\n".join(lines)


def _recipe_help(name: str) -> str:
    recipe = _load(name)
    stages = [f"{stage} (default)" if stage == recipe.DEFAULT_STAGE else stage for stage in recipe.STAGES]
    lines = [f"powerband train {name} [STAGE] [NAME=VALUE ...]", "", recipe.describe, ""]
    lines += [f"stages:    {', '.join(stages)}", f"variants:  {', '.join(recipe.VARIANTS) or 'none'}  (variant=NAME)"]
    lines += [f"presets:   {', '.join(presets()) or 'none'}  (setup=NAME)", "file:      --config FILE.yaml"]
    lines += [
        "",
        "NAME=VALUE and --NAME VALUE are one, --NAME and --no-NAME set true and false; the section may be left out.",
    ]
    return "\n".join(lines) + "\n\n" + fields_table(recipe.Config)
