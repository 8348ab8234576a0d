"""Episode sets of a run: reads or generates the episodes of a split; the stage `episodes` writes them to files."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.run.run import Run
from powerband.core.telemetry.console import Console, count_progress_bar
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.plans.episode_cache import MIN_CACHED_EPISODES, cache_path, read_cached, write_cached
from powerband.recipes.sketchnav.plans.episodes import Episodes, generate_episodes, load_episode_file
from powerband.recipes.sketchnav.plans.images import plan_sheet_image
from powerband.recipes.sketchnav.plans.sketch import downsample_page, read_sketch
from powerband.recipes.sketchnav.settings import PAGE_PX, SPLITS, EpisodeConfig, Level, Split
from powerband.report.media_files import save_image

SHEET_PLANS = 20
"""Number of plans on the overview image of a split."""


def load_episodes(
    config: Config, split: Split, console: Console | None = None, sketch: Level | None = None
) -> Episodes:
    """Reads or generates the episodes of a split.

    Args:
        config: Configuration of the run: scenes and seed, or the file that replaces them for training.
        split: Split of episodes.
        console: Console that shows what is generated or read; None shows nothing.
        sketch: Level of abstraction of the sketches; None uses the level in `config`.

    Raises:
        ConfigError: `episode_file` is not a valid file, or no path of a plan has the required length.
    """
    if split == "train" and config.episode_file:
        return load_episode_file(Path(config.episode_file))
    scenes = scenes_of(config, split)
    if sketch is not None:
        scenes = replace(scenes, sketch=sketch)
    seed = config.episode_seed
    file = cache_path(scenes, split, seed) if config.cache_episodes and scenes.count >= MIN_CACHED_EPISODES else None
    if console is not None:
        verb, place = ("reading", f", cached in {file}") if file and os.path.exists(file) else ("generating", "")
        console.note(f"{verb} {scenes.count:,} episodes in {scenes.plans:,} plans of {split}{place}")
    return read_or_generate(scenes, split, seed, file)


def scenes_of(config: Config, split: Split) -> EpisodeConfig:
    """Returns the distribution of the episodes of a split: `config.scenes`, with the plans of an evaluation for val."""
    if split == "train":
        return config.scenes
    plans = min(config.eval_plans, config.scenes.plans) if split == "val_seen" else config.eval_plans
    return replace(config.scenes, plans=plans)


@lru_cache(maxsize=4)
def read_or_generate(scenes: EpisodeConfig, split: Split, seed: int, file: Path | None) -> Episodes:
    """Reads a set of episodes from the disk cache, or generates it.

    The last four sets are kept in memory, because a profile or a search runs the same recipe many times.

    Args:
        scenes: Distribution of the episodes.
        split: Split of episodes.
        seed: Seed of the set.
        file: File in the disk cache; None does not use the disk cache.
    """
    cached = None if file is None else read_cached(file, scenes, split, seed)
    if cached is not None:
        return cached
    with count_progress_bar(f"plans of {split}", scenes.plans, "plans") as show_progress:
        generated = generate_episodes(scenes, split, seed, show_progress)
    if file is not None:
        write_cached(generated, file, scenes, split, seed)
    return generated


def with_user_sketches(episodes: Episodes, folder: Path) -> tuple[Episodes, Tensor]:
    """Replaces sketches by a user's drawings.

    Args:
        episodes: Episodes of a split.
        folder: Folder of images named by the number of their episode, such as 7.png.

    Returns:
        The episodes with the new sketches, and the numbers (n,) int64 of the episodes that have a drawing.

    Raises:
        ConfigError: The folder has no drawing, a number is too large, or an image is not a valid sketch.
    """
    files = {int(path.stem): path for path in folder.glob("*.png") if path.stem.isdigit()}
    if not files:
        raise ConfigError(
            f"drawings={folder} contains no image named by a number. Name each image by the number of its episode, "
            f"such as 0.png."
        )
    if max(files) >= len(episodes):
        raise ConfigError(
            f"{files[max(files)]} belongs to no episode: a file is named by the number of its episode, and this split "
            f"has the episodes 0 to {len(episodes) - 1}. Rename the file."
        )
    sketch, side = episodes.sketch.clone(), episodes.sketch.shape[-1]
    for number, path in files.items():
        sketch[number] = torch.from_numpy(downsample_page(read_sketch(path), side))
    return replace(episodes, sketch=sketch), torch.tensor(sorted(files))


def write_episode_sets(config: Config, run: Run) -> None:
    """Writes the episodes of each split to the run folder (stage `episodes`).

    A split has three outputs: ``episodes-SPLIT.safetensors``, a file for the option `episode_file`;
    ``sketches-SPLIT.png``, an overview image; and ``plans-SPLIT/``, plans to draw over.
    """
    seed = config.episode_seed
    for split in SPLITS:
        episodes = load_episodes(config, split, run.console)
        path = run.dir / f"episodes-{split}.safetensors"
        scenes = scenes_of(config, split)
        episodes.save(path, scenes, split, seed)
        run.console.note(f"wrote {len(episodes):,} episodes of {split} to {path}")
        sheet = plan_sheet_image(scenes, split, seed, min(SHEET_PLANS, scenes.plans))
        save_image(run.dir / f"sketches-{split}.png", sheet)
        write_plans(scenes, split, seed, run.dir / f"plans-{split}")


def write_plans(scenes: EpisodeConfig, split: Split, seed: int, folder: Path) -> None:
    """Writes images of the first plan of a split with start, goal and path, as templates for drawing sketches.

    Args:
        scenes: Distribution of the episodes.
        split: Split of episodes.
        seed: Seed of the episodes.
        folder: Folder that receives one PNG per episode of the plan, named by the number of the episode.
    """
    pages = generate_episodes(replace(scenes, plans=1, sketch="true", sketch_px=PAGE_PX), split, seed).sketch
    folder.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(pages):
        save_image(folder / f"{number}.png", page.permute(1, 2, 0).numpy())
