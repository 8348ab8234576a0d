"""Episode sets of sketchnav: read from a file or drawn, with a bar for the minutes that large sets take."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from powerband.core.console import count_shown
from powerband.envs.sketchnav.episodes import Episodes, Scenes, Split, draw_episodes

if TYPE_CHECKING:
    from powerband.core.console import Console
    from powerband.recipes.sketchnav import Config


def episodes_of(config: Config, split: Split, console: Console | None = None, sketch: str = "") -> Episodes:
    """The episodes of a split.

    Args:
        config: Scenes and seed, or the file that replaces them for training.
        split: train, or one of those that training does not see.
        console: Told what is being drawn.
        sketch: Level of the sketches, where it is not that of the scenes.
    """
    if split == "train" and config.episode_file:
        return Episodes.load(Path(config.episode_file))[0]
    scenes = config.scenes
    if split != "train":
        scenes = replace(
            scenes, plans=min(config.eval_plans, scenes.plans) if split == "val_seen" else config.eval_plans
        )
    if sketch:
        scenes = replace(scenes, sketch=sketch)
    if console is not None:
        console.note(f"drawing {scenes.count:,} episodes in {scenes.plans:,} plans of {split}")
    return _drawn(scenes, split, config.run.seed)


@lru_cache(maxsize=4)
def _drawn(scenes: Scenes, split: Split, seed: int) -> Episodes:
    """Drawn once a process: a profile or a search runs the same recipe many times."""
    with count_shown(f"plans of {split}", scenes.plans, "plans") as tell:
        return draw_episodes(scenes, split, seed, tell)
