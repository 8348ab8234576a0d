"""Caches generated episode sets as files in the user's cache folder, which the next start reads."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np

from powerband.core.machine.disk_cache import DiskCache
from powerband.recipes.sketchnav import settings
from powerband.recipes.sketchnav.plans import cell_codes, distance, episode_builder, episodes, generation, plan, sketch
from powerband.recipes.sketchnav.plans.episodes import VERSION, Episodes
from powerband.recipes.sketchnav.settings import EpisodeConfig, Split

MIN_CACHED_EPISODES = 400
"""Smaller sets are not cached, because they are generated within two seconds."""
SETS = DiskCache(
    "episodes",
    20,
    "cached episodes are generated again",
    "the generated episodes are not cached",
    ", or write cache_episodes=false",
)


@cache
def source_digest() -> str:
    """Returns the hexadecimal SHA-256 of the source of the modules that generate episodes, and of numpy's version.

    It is a part of the name of cache files, so that a change of the modules makes old files unused.
    """
    digest = hashlib.sha256(np.__version__.encode())
    for module in (settings, distance, episodes, episode_builder, generation, plan, sketch, cell_codes):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()


def cache_path(scenes: EpisodeConfig, split: Split, seed: int) -> Path | None:
    """Returns the path of the cache file of an episode set; None if the user has no home folder.

    Args:
        scenes: Distribution of the episodes.
        split: Split of episodes.
        seed: Seed of the episodes.
    """
    origin = [VERSION, source_digest(), asdict(scenes), split, seed]
    return SETS.file(json.dumps(origin, sort_keys=True).encode())


def read_cached(file: Path, scenes: EpisodeConfig, split: Split, seed: int) -> Episodes | None:
    """Reads an episode set from its cache file.

    Args:
        file: Path from `cache_path`.
        scenes: Expected distribution of the episodes.
        split: Expected split.
        seed: Expected seed.

    Returns:
        The episodes; None if there is no file and, with a warning, if the file is damaged or holds another set.
    """

    def load(file: Path) -> Episodes:
        cached, metadata = Episodes.load(file)
        origin = (metadata["scenes"], metadata["split"], metadata["seed"])
        if origin != (asdict(scenes), split, str(seed)) or "sha256" not in metadata:
            raise ValueError(f"{file} holds an episode set of other scenes, split or seed")
        return cached

    return SETS.read(file, load)


def write_cached(generated: Episodes, file: Path, scenes: EpisodeConfig, split: Split, seed: int) -> None:
    """Writes an episode set to its cache file; a failed write leaves no incomplete file (see `DiskCache.write`).

    Args:
        generated: Episodes to write.
        file: Path from `cache_path`.
        scenes: Distribution from which the episodes were generated.
        split: Split of the episodes.
        seed: Seed of the episodes.
    """
    SETS.write(file, lambda part: generated.save(part, scenes, split, seed))
