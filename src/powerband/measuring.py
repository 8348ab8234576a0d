"""Measuring: the verbs that run something for some seconds to learn how fast it is, and the table of benchmarks."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from dataclasses import fields

from powerband.catalogue import RECIPES, configure, load, take_recipe
from powerband.core.config import ConfigError, resolve
from powerband.core.schema import fields_table
from powerband.core.words import asks_help, emit, one_of, take_json, take_named

USAGE = {
    "profile": "RECIPE [seconds=20] [probe=true] [--apply] [NAME=VALUE ...]",
    "tune": "RECIPE [seconds=60] [learning=fixed] [memory_gib=0] [NAME=VALUE ...]",
    "estimate": "RECIPE [ranks=1,2,4,8] [price_per_hour=0] [NAME=VALUE ...]",
    "bench": "NAME [RECIPE] [NAME=VALUE ...]",
    "doctor": "[SECTION ...]",
}
"""Verb -> what may follow it."""
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


def profile(words: list[str]) -> int:
    """Runs a recipe for some seconds and says where the time goes; the exit status is the cause's."""
    typed = ["profile", *words]
    target, words = take_json(words)
    name, words = take_recipe("profile", USAGE["profile"], words)
    if name is None:
        from powerband.tune.causes import causes_table

        print(f"\nexit status, by cause:\n{causes_table()}")
        return 0
    own, words = take_named(words, ("seconds", "probe", "apply"))
    from powerband.tune import profile as profiles
    from powerband.tune import ranks_report

    options = resolve(profiles.Options, own, help_with=f"powerband profile {name} --help").config
    recipe, stage, resolved = configure(name, words)
    if resolved.config.run.resume:
        raise ConfigError(
            "resume is nothing to profile: a profile keeps nothing. Leave it out, the rates are the same."
        )
    from powerband.core import launch

    settings = resolved.config.run
    if hasattr(recipe, "check"):
        recipe.check(resolved.config, launch.world_size(settings))
    with ranks_report.report_of_ranks() as ranks:
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
        if found.measurement.leads and not ranks_report.leave_report(str(found), found.to_dict()):
            emit(found.to_dict() if target else str(found), target)
        return 0
    emit(found.to_dict() if target else str(found), target)
    return found.diagnosis.exit_code


def tune(words: list[str]) -> int:
    """Searches the settings that are fastest on this machine and writes them as a preset."""
    target, words = take_json(words)
    name, words = take_recipe("tune", USAGE["tune"], words)
    if name is None:
        return 0
    own, words = take_named(words, ("seconds", "learning", "memory_gib"))
    from powerband.core import launch
    from powerband.tune import preset, search

    options = resolve(search.Options, own, help_with=f"powerband tune {name} --help").config
    recipe, stage, resolved = configure(name, words)
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
    name, words = take_recipe("estimate", USAGE["estimate"], words)
    from powerband.tune import estimate as estimates

    if name is None:
        print(f"\n{fields_table(estimates.Options)}")
        return 0
    own, words = take_named(words, tuple(field.name for field in fields(estimates.Options)))
    options = resolve(estimates.Options, own, help_with="powerband estimate --help").config
    recipe, stage, resolved = configure(name, words)
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
        found = getattr(own, function)(words[1:], configure)
    if target:
        emit(found, target)
    return 0


def doctor(words: list[str]) -> int:
    """Checks this machine, section by section; the exit status is 1 where a check failed."""
    from powerband.doctor.checkup import SECTIONS, run

    target, words = take_json(words)
    if asks_help(words):
        print(f"powerband doctor {USAGE['doctor']}\n\n" + "\n".join(f"  {k:<12} {v}" for k, v in SECTIONS.items()))
        return 0
    chosen = [one_of(word, SECTIONS, "section of doctor") for word in words]
    found = run(chosen, {name: lambda name=name: load(name) for name in RECIPES}, show=target != "-")
    if target:
        emit(found, target)
    return found["exit_code"]
