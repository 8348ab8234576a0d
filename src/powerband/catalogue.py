"""Catalogue: the one table of recipes, and how words after a recipe's name become its configuration."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import replace
from types import ModuleType
from typing import Any

from powerband.core.config import ConfigError, Resolved, resolve
from powerband.core.presets import presets
from powerband.core.run_folder import find_run
from powerband.core.schema import fields_table
from powerband.core.words import asks_help, one_of

RECIPES = {
    "uav": "a team of UAVs maps a hidden field, thousands of missions at a time: coma, iac",
    "snakes": "3v3 snakes on one device, thousands of boards at a time: ddpg, bicnet, ppo with self-play",
    "metaworld": "Meta-World's manipulation tasks: SAC experts, trajectory transformer, collective policy, student",
    "sketchnav": "find a goal in a building by a hand-drawn sketch of it, many agents at a time: ppo, diffusion, clone",
    "libero": "LIBERO's tasks, told in words: a diffusion transformer (RDT) through Accelerate, evaluated with video",
    "gym": "any Gymnasium environment id, your own included: sac, ppo",
}
"""Recipe -> what it is, in a line."""


def configure(name: str, words: list[str]) -> tuple[ModuleType, str, Resolved]:
    """(recipe, stage, configuration) of a recipe's name and the words after it.

    Raises:
        ConfigError: No such recipe or stage, or a word that the configuration refuses.
    """
    recipe = load(name)
    help_with = f"powerband train {name} --help"
    stage = recipe.DEFAULT_STAGE
    words, said = _translated(words, getattr(recipe, "WORDS", {}), recipe.STAGES)
    if words and not words[0].startswith("-") and "=" not in words[0]:
        stage, words = one_of(words[0], recipe.STAGES, f"stage of {name}"), words[1:]
    named_file = os.environ.get(getattr(recipe, "CONFIG_VARIABLE", ""), "")
    if named_file and not any(word.startswith("--config") for word in words):
        words = ["--config", named_file, *words]  # the file that an older project's environment variable names
    sections = getattr(recipe, "SECTIONS", None)
    named = {"variants": recipe.VARIANTS, "renamed": recipe.RENAMED, "sections": sections, "help_with": help_with}
    named["recipe"] = name
    resolved = resolve(recipe.Config, words, **named)
    if hasattr(recipe, "settle"):
        told = recipe.notices(resolved.config) if hasattr(recipe, "notices") else []
        resolved = replace(
            resolved,
            config=recipe.settle(resolved.config, stage),
            notices=(*resolved.notices, *said, *told),
        )
    if resolved.config.run.env_steps < 1:
        raise ConfigError("env_steps=0 is below 1. Write env_steps=1 or more.")
    if resolved.config.run.resume:
        folder = find_run(resolved.config.run.resume)
        trained = json.loads((folder / "run.json").read_text(encoding="utf-8")).get("recipe")
        if trained != name:
            raise ConfigError(f"{folder} is a run of {trained}, not of {name}. Write powerband train {trained} ...")
    return recipe, stage, resolved


def _translated(words: list[str], known: dict[str, str], stages: Any) -> tuple[list[str], list[str]]:
    """Words with those of an older command line in today's, a stage first; and what to tell the user about them."""
    kept, stage, said = [], [], []
    for word in words:
        plain = word.lower().replace('"', "").replace("'", "")
        if plain not in known:
            kept.append(word)
            continue
        new = known[plain]
        said.append(f"{word}: {f'this is {new} here' if new else 'it needs no word here'}.")
        if new in stages:
            stage = [new]
        elif new and new not in kept:
            kept.append(new)
    return stage + kept, said


def load(name: str) -> ModuleType:
    """The module of a recipe."""
    return importlib.import_module(f"powerband.recipes.{one_of(name, RECIPES, 'recipe')}")


def take_recipe(verb: str, usage: str, words: list[str]) -> tuple[str | None, list[str]]:
    """(recipe, words after it); (None, ...) where help was asked for and given.

    Args:
        verb, usage: The verb, and what may follow it.
        words: The command line after the verb.
    """
    if not words or words[0] in ("-h", "--help"):
        lines = [f"  {name:<10} {line}" for name, line in RECIPES.items()]
        print(f"powerband {verb} {usage}\n\nrecipes:\n" + "\n".join(lines))
        print(f"\n`powerband {verb} RECIPE --help` lists what can be set.")
        return None, []
    name = one_of(words[0], RECIPES, "recipe")
    if asks_help(words[1:]):
        print(recipe_help(name))
        return None, []
    return name, words[1:]


def recipe_help(name: str) -> str:
    """What can be set: stages, variants, presets, every field."""
    recipe = load(name)
    stages = [f"{stage} (default)" if stage == recipe.DEFAULT_STAGE else stage for stage in recipe.STAGES]
    lines = [f"powerband train {name} [STAGE] [NAME=VALUE ...]", "", recipe.describe, ""]
    lines += [f"stages:    {', '.join(stages)}", f"variants:  {', '.join(recipe.VARIANTS) or 'none'}  (variant=NAME)"]
    lines += [f"presets:   {', '.join(presets()) or 'none'}  (setup=NAME)", "file:      --config FILE.yaml"]
    lines += [
        "",
        "NAME=VALUE and --NAME VALUE are one, --NAME and --no-NAME set true and false; the section may be left out.",
    ]
    return "\n".join(lines) + "\n\n" + fields_table(recipe.Config)
