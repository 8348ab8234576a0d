"""Checks the files that the user provides, the episode file and the floor plans, before a run starts."""

from __future__ import annotations

from pathlib import Path

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.episodes.episodes import load_episode_file
from powerband.recipes.sketchnav.plans.imported.plan_files import read_plans


def is_habitat(episode_file: str) -> bool:
    """True if the name of a file is that of PointNav episodes of Habitat."""
    return episode_file.endswith((".json", ".json.gz"))


def is_episode_set(episode_file: str) -> bool:
    """True if the option names a file that the stage `episodes` has written, which has plans and sketches, too."""
    return bool(episode_file) and not is_habitat(episode_file)


def check_files(episode_file: str, plans_dir: str, metres_per_pixel: float, sketch_px: int) -> None:
    """Refuses episode files and floor plans that are not valid. The arguments are the options of these names.

    The option of `sketch_px` is ``scenes.sketch_px``.

    Raises:
        ConfigError: A file is not valid, or two options contradict each other.
    """
    if metres_per_pixel and not plans_dir:
        raise ConfigError(
            f"metres_per_pixel={metres_per_pixel:g} is the scale of your own plans. Write plans_dir=FOLDER, too."
        )
    if plans_dir:
        read_plans(Path(plans_dir), metres_per_pixel)
    if not episode_file:
        return
    if is_habitat(episode_file):
        if not plans_dir:
            raise ConfigError(
                f"episode_file={episode_file} has episodes of Habitat, which need a top-down map of each scene. Write "
                f"plans_dir=FOLDER, or generate episodes with `powerband train sketchnav episodes`."
            )
        if not Path(episode_file).is_file():
            raise ConfigError(f"episode_file={episode_file} does not exist. Name a PointNav file of Habitat.")
    elif plans_dir:
        raise ConfigError(
            f"episode_file={episode_file} has plans of its own, so plans_dir={plans_dir} has no effect. Leave one out."
        )
    else:
        side = load_episode_file(Path(episode_file))[0].sketch.shape[-1]
        if side != sketch_px:
            raise ConfigError(
                f"scenes.sketch_px={sketch_px}, but the sketches of episode_file={episode_file} have {side} pixels. "
                f"Write scenes.sketch_px={side}, or write the file again with `powerband train sketchnav episodes`."
            )
