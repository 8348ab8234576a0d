"""The command line: the verbs. It knows no training and imports torch only to train."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from powerband import __version__, measuring
from powerband.catalogue import RECIPES, configure, load, take_recipe
from powerband.core.config import DEFAULT, ConfigError, from_json, resolve, to_dict
from powerband.core.device import WAITING, keep_memory
from powerband.core.presets import presets
from powerband.core.run_folder import find_run
from powerband.core.schema import fields_table, value_text
from powerband.core.words import asks_help, emit, one_of, take_json

RECIPE_WORDS = "RECIPE [STAGE] [NAME=VALUE ...]"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# -- verbs --------------------------------------------------------------------------------------------------------


def train(words: list[str]) -> int:
    """Reads the configuration, starts ranks where several are asked for, else runs the stage."""
    typed = ["train", *words]
    target, words = take_json(words)
    name, words = take_recipe("train", RECIPE_WORDS, words)
    if name is None:
        return 0
    recipe, stage, resolved = configure(name, words)
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
                figures = recipe.STAGES[stage](run.config, run) or {}
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
    """Hands a run folder, or the checkpoint in it that is named, to its recipe's ``evaluate``.

    The recipe's ``Evaluation`` says what can be set. What it writes lies in the folder that it is handed.
    """
    target, words = take_json(words)
    named = words[:1]
    folder, words = _take_run("eval", words)
    facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    recipe = load(facts["recipe"])
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
    from powerband.core.checkpoint import checkpoint_of

    rendering.prepare()
    with contextlib.redirect_stdout(sys.stderr) if target else contextlib.nullcontext():
        table = recipe.evaluate(config, checkpoint_of(*named) or folder, options)
    if target:
        emit(table, target)
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


def list_recipes(words: list[str]) -> int:
    """Recipes with their stages and variants, and the hardware presets."""
    target, words = take_json(words)
    if words:
        raise ConfigError(f"'{words[0]}' means nothing to list. Write powerband list, or powerband show {words[0]}.")
    table = {}
    for name, line in RECIPES.items():
        recipe = load(name)
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
    name, words = take_recipe("show", RECIPE_WORDS, words)
    if name is None:
        return 0
    _, stage, resolved = configure(name, words)
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
    "train": (train, RECIPE_WORDS, "train: on CPU, one GPU, many GPUs, many machines"),
    "eval": (evaluate, "RUN [NAME=VALUE ...]", "evaluate a run, or the checkpoint in it that is named"),
    "profile": (
        measuring.profile,
        measuring.USAGE["profile"],
        "run it for some seconds: where the time goes, what binds it, what each knob would gain",
    ),
    "tune": (
        measuring.tune,
        measuring.USAGE["tune"],
        "find the fastest settings on this machine; setup=tuned loads them",
    ),
    "estimate": (
        measuring.estimate,
        measuring.USAGE["estimate"],
        "hours, memory and cost of a run before it starts, by its number of ranks",
    ),
    "report": (report, "RUN [RUN ...] [to=FILE.html]", "one self-contained HTML page about a run, or several compared"),
    "watch": (
        watch,
        "RUN [--csv] [--once] [every=SECONDS]",
        "follow a running job from its files, without touching it",
    ),
    "bench": (measuring.bench, measuring.USAGE["bench"], "reproducible tables"),
    "doctor": (
        measuring.doctor,
        measuring.USAGE["doctor"],
        "this machine: GPUs, precision, copies, simulators, rendering, networks",
    ),
    "list": (list_recipes, "", "recipes, stages, variants, hardware presets"),
    "show": (show, RECIPE_WORDS, "the resolved configuration, each value with its source"),
}


def main(words: list[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0, 1 where `doctor` found a fault, 2 for what a user can right."""
    words = sys.argv[1:] if words is None else words
    if os.environ.get("OMP_WAIT_POLICY", "passive").lower() == "passive":  # and not sleep at once
        os.environ |= {**WAITING, **os.environ}  # torch reads it once, when it is imported
    keep_memory()
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


def _take_run(verb: str, words: list[str]) -> tuple[Path, list[str]]:
    if not words or words[0].startswith("-"):
        raise ConfigError(f"powerband {verb} needs a run. Write powerband {verb} runs/NAME, or powerband {verb} last.")
    return find_run(words[0]), words[1:]


# -- what is printed ----------------------------------------------------------------------------------------------


def _verbs() -> list[str]:
    return [name for name in VERBS if name != "bench" or measuring.BENCHES]


def _usage() -> str:
    lines = ["powerband VERB ...  trains policies with the accelerator in its power band", ""]
    for name in _verbs():
        _, arguments, what = VERBS[name]
        call = f"{name} {arguments}".strip()
        lines.append(f"  {call:<34} {what}" if len(call) <= 34 else f"  {call}\n{'':<36} {what}")
    lines += ["", "recipes:", *(f"  {name:<10} {line}" for name, line in RECIPES.items()), ""]
    lines.append("Every verb takes --json [FILE.json]. `powerband train RECIPE --help` lists what can be set.")
    return "\n".join(lines)
