"""Layout: settings that leave learning unchanged and make this machine faster, as a search for throughput found them.

They come from the preset for throughput of the same task, or from a short search.
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
    """Returns the layout of the preset for throughput; None if there is no preset for this task and machine.

    Args:
        recipe: Recipe of the preset.
        key: Recipe, task and algorithm; its objective does not count.
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
    """Returns the layout that a short search finds; empty if the budget is too small for one, or none is faster.

    Args:
        recipe: Recipe to tune.
        stage: Stage to tune.
        config: Present configuration.
        budget_s: Seconds of the whole command.
        progress: Called with the name of each step and a share of the budget.
    """
    seconds = min(SEARCH_S, SEARCH_SHARE * budget_s)
    if seconds < MIN_SEARCH_S:
        return {}
    options = SearchOptions(seconds=seconds)
    result = Search(
        recipe, stage, config, options, lambda step, share: progress(f"throughput: {step}", share * seconds / budget_s)
    ).run()
    return by_qualified_name(result.space, result.best.setting)
