"""Episode sets of a run: reads or generates the episodes of a split; the stage `episodes` writes them to files."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.config.texts import shortened, some_of
from powerband.core.errors import ConfigError
from powerband.core.ranks.ranks import refuse_several
from powerband.core.run.run import Run
from powerband.core.telemetry.console import Console, count_progress_bar
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.old_names import RENAMED_SCENES
from powerband.recipes.sketchnav.plans.episodes.cache import (
    MIN_CACHED_EPISODES,
    SETS,
    cache_path,
    generate_cached,
)
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, Episodes, load_episode_file
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes
from powerband.recipes.sketchnav.plans.episodes.parts import read_cached
from powerband.recipes.sketchnav.plans.file_checks import is_episode_set
from powerband.recipes.sketchnav.plans.images import plan_sheet_image
from powerband.recipes.sketchnav.plans.imported.habitat import habitat_episodes
from powerband.recipes.sketchnav.plans.imported.plan_files import ImportedPlan, plans_of_split, read_plans
from powerband.recipes.sketchnav.plans.plan import Plan
from powerband.recipes.sketchnav.plans.sketch import downsample_page, draw_sketch, read_sketch
from powerband.recipes.sketchnav.settings import SPLITS, EpisodeConfig, Level, Split
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
    if split == "train" and is_episode_set(config.episode_file):
        episodes, metadata = load_episode_file(Path(config.episode_file))
        if console is not None and (differences := _differences(config, metadata)):
            console.note(
                f"episode_file={shortened(config.episode_file)} differs from this run: {', '.join(differences)}. "
                f"Training plays the episodes of the file; evaluations use the settings of the run."
            )
        return episodes
    scenes = scenes_of(config, split)
    if sketch is not None:
        scenes = replace(scenes, sketch=sketch)
    seed = config.episode_seed
    if config.plans_dir:
        plans = plans_of_split(read_plans(Path(config.plans_dir), config.metres_per_pixel), split)
        plans = plans if split == "train" else plans[: config.eval_plans]
        if console is not None:
            console.note(
                f"{len(plans):,} plans of {split} in {config.plans_dir}: {some_of([p.name for p in plans], 3)}"
            )
        habitat = config.episode_file if split == "train" else ""
        return _episodes_in(plans, scenes, split, seed, habitat, console)
    file = cache_path(scenes, split, seed) if config.cache_episodes and scenes.count >= MIN_CACHED_EPISODES else None
    if console is not None:
        verb, place = ("reading", f", cached in {file}") if file and os.path.exists(file) else ("generating", "")
        console.note(f"{verb} {scenes.count:,} episodes in {scenes.plans:,} plans of {split}{place}")
    return read_or_generate(scenes, split, seed, file)


def _differences(config: Config, metadata: dict[str, Any]) -> list[str]:
    """Returns the settings in which a file of episodes differs from a run, with both values.

    Args:
        config: Configuration of the run.
        metadata: Metadata of the file, from `Episodes.load`. Early files do not have all of it.
    """
    recorded = {f"scenes.{RENAMED_SCENES.get(name, name)}": value for name, value in metadata["scenes"].items()}
    recorded |= {"split": metadata.get("split", "train"), "scene_seed": metadata.get("seed", config.episode_seed)}
    own = {"split": "train", "scene_seed": config.episode_seed}
    own |= {f"scenes.{name}": value for name, value in asdict(config.scenes).items()}
    return [
        f"{name}={recorded[name]}, not {value}"
        for name, value in own.items()
        if str(recorded.get(name, value)) != str(value)
    ]


def load_own_plans(config: Config, sketch: Level) -> Episodes:
    """Returns episodes in all plans of ``config.plans_dir``, without a plan that is held out.

    Args:
        config: Configuration with the folder, its scale, and the file of episodes if they are not generated.
        sketch: Level of abstraction of the sketches.

    Raises:
        ConfigError: A plan or an episode is not valid.
    """
    plans = read_plans(Path(config.plans_dir), config.metres_per_pixel)
    scenes = replace(config.scenes, sketch=sketch)
    return _episodes_in(plans, scenes, "val_unseen", config.episode_seed, config.episode_file)


def _episodes_in(
    plans: list[ImportedPlan],
    scenes: EpisodeConfig,
    split: Split,
    seed: int,
    episode_file: str,
    console: Console | None = None,
) -> Episodes:
    """Returns episodes in imported plans: those of a file of Habitat, or generated ones if `episode_file` is empty."""
    if episode_file:
        episodes, message = habitat_episodes(Path(episode_file), plans, scenes, split, seed)
        if console is not None:
            console.note(message)
        return episodes
    with count_progress_bar(f"plans of {split}", len(plans), "plans") as show_progress:
        return generate_episodes(scenes, split, seed, show_progress, [imported.plan for imported in plans])


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
    cached = None if file is None else read_cached(file, scenes, split, seed, SETS)
    if cached is not None:
        return cached
    with count_progress_bar(f"plans of {split}", scenes.plans, "plans") as show_progress:
        if file is not None:
            return generate_cached(file, scenes, split, seed, show_progress)
        return generate_episodes(scenes, split, seed, show_progress)


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
    ``sketches-SPLIT.png``, an overview image; and ``plans-SPLIT/``, plans to draw over. If `episode_file` names such a
    file, its episodes are not written again, and get only plans to draw over.
    """
    refuse_several(run.ranks, "episodes")
    seed = config.episode_seed
    for split in SPLITS:
        episodes = load_episodes(config, split, run.console)
        write_plans(episodes, run.dir / f"plans-{split}")
        if split == "train" and is_episode_set(config.episode_file):
            run.console.note(f"the episodes of train are in {config.episode_file}, and are not written again")
            continue
        path = run.dir / f"episodes-{split}.safetensors"
        scenes = replace(scenes_of(config, split), plans=len(episodes.size))
        episodes.save(path, scenes, split, seed)
        run.console.note(f"wrote {len(episodes):,} episodes of {split} to {path}")
        plans = []
        if config.plans_dir:
            imported = plans_of_split(read_plans(Path(config.plans_dir), config.metres_per_pixel), split)
            plans = [each.plan for each in imported]
        count = min(SHEET_PLANS, len(plans) or scenes.plans)
        save_image(run.dir / f"sketches-{split}.png", plan_sheet_image(scenes, split, seed, count, plans=plans))


def write_plans(episodes: Episodes, folder: Path) -> None:
    """Writes images of the first plan of a split with start, goal and path, as templates for drawing sketches.

    Args:
        episodes: Episodes of the split.
        folder: Folder that receives one PNG per episode of the plan, named by the number of the episode.
    """
    first = int(episodes.plan[0])
    plan = Plan(episodes.plan_cells(first), np.zeros((0, 4), np.float32), [])  # the exact plan shows cells, not lines
    folder.mkdir(parents=True, exist_ok=True)
    for number in (episodes.plan == first).nonzero()[:, 0].tolist():
        start, goal = (at[number, :2].numpy() * COORDINATE_UNIT_M for at in (episodes.start, episodes.target))
        page = draw_sketch(plan, start, goal, episodes.path_corners(number), "true", np.random.default_rng(0))
        save_image(folder / f"{number}.png", page)
