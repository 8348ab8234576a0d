"""Selects the episodes that ``powerband eval`` plays: splits of the run, the user's sketches, or the user's plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.evaluation.options import Evaluation
from powerband.recipes.sketchnav.plans.episodes.episodes import Episodes
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes, load_own_plans, with_user_sketches
from powerband.recipes.sketchnav.plans.file_checks import is_episode_set
from powerband.recipes.sketchnav.settings import Level

OWN = "own"
"""Name of the user's own sketches and floor plans in tables."""
OF_FILE = "file"
"""Name of the sketches of `episode_file` in tables."""


def evaluation_sets(config: Config, options: Evaluation) -> Iterator[tuple[str, str, Episodes, Tensor | None]]:
    """Yields (split, level of the sketches, episodes, numbers) for each set of episodes that `options` selects.

    Split or level is ``own`` for the user's plans or drawings. The level is ``file`` for sketches that the run reads
    from `episode_file`. The numbers (n,) int64 are those of the n episodes to play; None plays all.

    Raises:
        ConfigError: A plan, an episode or a drawing of the user is not valid, or `options` select sketches for training
            episodes that are read from a file.
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
    from_file = is_episode_set(config.episode_file)
    if from_file and options.sketches and "train" in options.splits:
        raise ConfigError(
            f"sketches={','.join(options.sketches)} has no effect on splits=train: the run reads these episodes and "
            f"their sketches from episode_file={shortened(config.episode_file)}. Leave sketches out, or name other "
            f"splits."
        )
    for split in options.splits or ("val_seen", "val_unseen"):
        if options.drawings:
            blank = load_episodes(config, split, sketch="blank")
            yield split, OWN, *with_user_sketches(blank, Path(options.drawings))
            continue
        if split == "train" and from_file:
            episodes = load_episodes(config, split)
            yield split, OF_FILE, episodes, spread_episodes(options.episodes, len(episodes))
            continue
        for sketch in levels:
            episodes = load_episodes(config, split, sketch=sketch)
            yield split, sketch, episodes, spread_episodes(options.episodes, len(episodes))


def spread_episodes(count: int, available: int) -> Tensor | None:
    """Selects episodes that are spread evenly over a set.

    With ``scenes.sketch=mixed``, even numbers have smooth sketches and odd ones abstract sketches. Half of the selected
    numbers are therefore odd, if at most half of the episodes are selected.

    Args:
        count: Number of episodes to select; 0 selects all.
        available: Number of episodes in the set.

    Returns:
        Distinct numbers (count,) int64 in ascending order; None selects all.
    """
    if not 0 < count < available:
        return None
    index = torch.arange(count)
    number = index * available // count
    return number + ((number ^ index) & 1) if available >= 2 * count else number
