"""Episode sets of sketchnav: read from a file or drawn, with a bar for the minutes that large sets take."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerband.core.config import ConfigError
from powerband.core.console import count_shown
from powerband.envs.sketchnav.episodes import SPLITS, Episodes, Scenes, Split, draw_episodes
from powerband.envs.sketchnav.picture import draw_sheet
from powerband.envs.sketchnav.sketch import PAGE, read_sketch, shrunk
from powerband.recipes.sketchnav_kept import LEAST, keep, kept_file, read_kept
from powerband.report.film import save_picture

if TYPE_CHECKING:
    from powerband.core.console import Console
    from powerband.core.run import Run
    from powerband.recipes.sketchnav import Config


def seed_of(config: Config) -> int:
    """Of plans, episodes and sketches."""
    return config.run.seed if config.scene_seed < 0 else config.scene_seed


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
    seed = seed_of(config)
    file = kept_file(scenes, split, seed) if config.keep_episodes and scenes.count >= LEAST else None
    if console is not None:
        doing, where = ("reading", f", kept in {file}") if file and os.path.exists(file) else ("drawing", "")
        console.note(f"{doing} {scenes.count:,} episodes in {scenes.plans:,} plans of {split}{where}")
    return _had(scenes, split, seed, file)


def with_drawings(episodes: Episodes, folder: Path) -> tuple[Episodes, Tensor]:
    """The same with a user's own sketches, and the numbers (n,) int64 of the episodes that have one.

    Args:
        episodes: Of a split.
        folder: Holds pictures named by the number of their episode: 7.png.

    Raises:
        ConfigError: No such picture, a number that there is not, or a picture that is no sketch; which.
    """
    files = {int(path.stem): path for path in folder.glob("*.png") if path.stem.isdigit()}
    if not files:
        raise ConfigError(f"drawings={folder} holds no 0.png, 1.png, ...: name each by the number of its episode.")
    if max(files) >= len(episodes):
        raise ConfigError(f"{files[max(files)]}: this split has the episodes 0 to {len(episodes) - 1}.")
    sketch, side = episodes.sketch.clone(), episodes.sketch.shape[-1]
    for number, path in files.items():
        try:
            sketch[number] = torch.from_numpy(shrunk(read_sketch(path), side))
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return replace(episodes, sketch=sketch), torch.tensor(sorted(files))


def episodes(config: Config, run: Run) -> None:
    """Writes the episodes of all splits as files that `episode_file` reads, and a page of sketches of each."""
    for split in SPLITS:
        found = episodes_of(config, split, run.console)
        path = run.dir / f"episodes-{split}.safetensors"
        found.save(path, config.scenes, split, seed_of(config))
        run.console.note(f"{len(found):,} episodes of {split}: {path}")
        sheet = draw_sheet(config.scenes, split, seed_of(config), min(20, config.scenes.plans))
        save_picture(run.dir / f"sketches-{split}.png", sheet)
        write_plans(config.scenes, split, seed_of(config), run.dir / f"plans-{split}")


def write_plans(scenes: Scenes, split: Split, seed: int, folder: Path) -> None:
    """Writes the plan of each of a split's first episodes, with start, goal and way: what to draw a sketch from."""
    pages = draw_episodes(replace(scenes, plans=1, sketch="true", sketch_px=PAGE), split, seed).sketch
    folder.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(pages):
        save_picture(folder / f"{number}.png", page.permute(1, 2, 0).numpy())


@lru_cache(maxsize=4)
def _had(scenes: Scenes, split: Split, seed: int, file: Path | None) -> Episodes:
    """Read or drawn once a process: a profile or a search runs the same recipe many times."""
    if file is None:
        return _drawn(scenes, split, seed)
    found = read_kept(file, scenes, split, seed)
    if found is None:
        found = _drawn(scenes, split, seed)
        keep(found, file, scenes, split, seed)
    return found


def _drawn(scenes: Scenes, split: Split, seed: int) -> Episodes:
    with count_shown(f"plans of {split}", scenes.plans, "plans") as tell:
        return draw_episodes(scenes, split, seed, tell)
