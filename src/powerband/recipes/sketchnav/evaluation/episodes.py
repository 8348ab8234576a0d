"""Selects the episodes that ``powerband eval`` plays: splits of the run, the user's sketches, or the user's plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.evaluation.options import Evaluation
from powerband.recipes.sketchnav.plans.episodes.episodes import Episodes
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes, load_own_plans, with_user_sketches
from powerband.recipes.sketchnav.settings import Level

OWN = "own"
"""Name of the user's own sketches and floor plans in tables."""


def evaluation_sets(config: Config, options: Evaluation) -> Iterator[tuple[str, str, Episodes, Tensor | None]]:
    """Yields (split, level of the sketches, episodes, numbers) for each set of episodes that `options` selects.

    Split or level is ``own`` for the user's plans or drawings. The numbers (n,) int64 are those of the n episodes to
    play; None plays all.

    Raises:
        ConfigError: A plan, an episode or a drawing of the user is not valid.
    """
    level = config.scenes.sketch
    levels: tuple[Level, ...] = options.sketches or (("smooth", "abstract") if level == "mixed" else (level,))
    if options.plans_dir:
        config = replace(
            config,
            plans_dir=options.plans_dir,
            metres_per_pixel=options.metres_per_pixel,
            episode_file=options.episode_file,
        )
        for sketch in levels:
            episodes = load_own_plans(config, sketch)
            yield OWN, sketch, episodes, spread_episodes(options.episodes, len(episodes))
        return
    for split in options.splits or ("val_seen", "val_unseen"):
        if options.drawings:
            blank = load_episodes(config, split, sketch="blank")
            yield split, OWN, *with_user_sketches(blank, Path(options.drawings))
            continue
        for sketch in levels:
            episodes = load_episodes(config, split, sketch=sketch)
            yield split, sketch, episodes, spread_episodes(options.episodes, len(episodes))


def spread_episodes(count: int, available: int) -> Tensor | None:
    """Returns the numbers (count,) int64 of episodes that are spread evenly; None plays all `available` ones."""
    return torch.arange(count) * available // count if 0 < count < available else None
