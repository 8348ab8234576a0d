"""Layout: finds settings that make training faster on this machine and leave learning unchanged, such as threads.

They come from the throughput preset (settings of an earlier search) of the same task, or from a short search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from powerband.core.config.flags import from_yaml
from powerband.core.config.presets import TunedKey, check_tuned_preset, presets, split_tuned_section
from powerband.core.config.schema import fields_of
from powerband.core.config.values import parse_value
from powerband.core.errors import ConfigError
from powerband.core.recipe import Recipe
from powerband.tune.score.study import SharedStudy
from powerband.tune.search.options import SearchOptions
from powerband.tune.search.search import Search
from powerband.tune.search.space import by_qualified_name

NEUTRAL = frozenset(
    ("nproc", "threads", "precision", "overlap", "num_workers", "double_buffer", "compile", "graph_updates")
)
"""Settings that leave learning unchanged."""
SEARCH_S = 60.0
SEARCH_SHARE = 0.1
"""Longest search for a layout, and its largest share of the budget."""
MIN_SEARCH_S = 20.0


def layout_from_preset(recipe: Recipe, key: TunedKey) -> dict[str, Any] | None:
    """Returns the settings of a throughput preset that leave learning unchanged, such as the number of threads.

    A throughput preset is a file in which an earlier search stored the fastest settings.

    Args:
        recipe: Recipe of the preset.
        key: Recipe, task and algorithm of the preset; its objective is ignored.

    Returns:
        Qualified name -> value, such as ``run.threads`` -> 4; None if there is no preset for this task and machine.
    """
    key = replace(key, objective="throughput")
    path = presets().get(key.name)
    if path is None:
        return None
    flags, header = split_tuned_section(from_yaml(path))
    try:
        check_tuned_preset(header, path, key)
    except ConfigError:
        return None
    fields = fields_of(recipe.Config)
    return {
        flag.name: parse_value(flag, fields[flag.name].kind)
        for flag in flags
        if flag.name in fields and flag.name.rpartition(".")[2] in NEUTRAL
    }


def layout_from_search(
    recipe: Recipe, stage: str, config: Any, budget_s: float, progress: Callable[[str, float], object]
) -> dict[str, Any]:
    """Searches for settings that make training faster on this machine and leave learning unchanged.

    Args:
        recipe: Recipe to tune.
        stage: Name of the stage (function of the recipe) to tune, such as ``train``.
        config: Present configuration.
        budget_s: Time budget of the whole command in seconds; the search takes at most a tenth of it.
        progress: Called with the name of each step and the share of the budget that is spent, 0 to 1.

    Returns:
        Qualified name -> value, such as ``run.threads`` -> 4. Empty if the budget is too small for a search, or if no
        settings are faster.
    """
    seconds = min(SEARCH_S, SEARCH_SHARE * budget_s)
    if seconds < MIN_SEARCH_S:
        return {}
    options = SearchOptions(seconds=seconds)
    result = Search(
        recipe, stage, config, options, lambda step, share: progress(f"throughput: {step}", share * seconds / budget_s)
    ).run()
    return by_qualified_name(result.space, result.best.setting)


def layout_of_study(study: SharedStudy, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the layout that a study has for this machine, so that its trials stay comparable when it continues.

    Args:
        study: Database of the trials.
        find: Searches for the layout of a new study, as `layout_from_search` does.

    Returns:
        Qualified name -> value, such as ``run.threads`` -> 4.
    """
    name = f"layout of {study.machine}"
    found = study.attributes().get(name)
    if found is None:
        found = find()
        study.set(**{name: found})
    return found
