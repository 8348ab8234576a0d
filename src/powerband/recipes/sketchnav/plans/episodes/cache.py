"""Caches generated episode sets as files in the user's cache folder, which the next start reads.

A set is generated in parts, which are cached too until the set is complete. A start after a kill continues after the
last finished part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from powerband.core.machine.disk_cache import DiskCache
from powerband.recipes.sketchnav import settings
from powerband.recipes.sketchnav.plans import cell_codes, distance, episode_builder, episodes, generation, plan, sketch
from powerband.recipes.sketchnav.plans.episode_builder import check_distances
from powerband.recipes.sketchnav.plans.episodes import VERSION, Episodes
from powerband.recipes.sketchnav.plans.generation import generate_episodes
from powerband.recipes.sketchnav.settings import EpisodeConfig, Split

MIN_CACHED_EPISODES = 400
"""Smaller sets are not cached, because they are generated within two seconds."""
PART_PLANS, MOST_PARTS = 25, 32
"""Smallest number of plans of a part, which takes some seconds, and largest number of parts of a set."""
MESSAGES = (
    "cached episodes are generated again",
    "the generated episodes are not cached",
    ", or write cache_episodes=false",
)
SETS, PARTS = DiskCache("episodes", 20, *MESSAGES), DiskCache("episode-parts", 2 * MOST_PARTS, *MESSAGES)


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
    return SETS.file(_origin(scenes, split, seed))


def _origin(*values: object) -> bytes:
    values = tuple(asdict(value) if isinstance(value, EpisodeConfig) else value for value in values)
    return json.dumps([VERSION, source_digest(), *values], sort_keys=True).encode()


def read_cached(
    file: Path | None, scenes: EpisodeConfig, split: Split, seed: int, files: DiskCache = SETS
) -> Episodes | None:
    """Reads an episode set from its cache file.

    Args:
        file: Path from `cache_path`; None counts as a file that does not exist.
        scenes: Expected distribution of the episodes.
        split: Expected split.
        seed: Expected seed.
        files: Cache to which the file belongs.

    Returns:
        The episodes; None if there is no file and, with a warning, if the file is damaged or holds another set.
    """

    def load(file: Path) -> Episodes:
        cached, metadata = Episodes.load(file)
        origin = (metadata["scenes"], metadata["split"], metadata["seed"])
        if origin != (asdict(scenes), split, str(seed)) or "sha256" not in metadata:
            raise ValueError(f"{file} holds an episode set of other scenes, split or seed")
        return cached

    return files.read(file, load)


def generate_cached(
    file: Path, scenes: EpisodeConfig, split: Split, seed: int, progress: Callable[[int], object]
) -> Episodes:
    """Generates an episode set in parts and writes it to its cache file; parts of an earlier start are read.

    A failed write leaves no incomplete file (see `DiskCache.write`).

    Args:
        file: Path from `cache_path`.
        scenes: Distribution of the episodes.
        split: Split of the episodes.
        seed: Seed of the episodes.
        progress: Callback that receives the number of finished plans.

    Raises:
        ConfigError: A plan has no path of the required length, or all distances together are larger than 4 GiB.
    """
    size = max(PART_PLANS, -(-scenes.plans // MOST_PARTS))
    parts, part_files = [], []
    for first in range(0, scenes.plans, size):
        numbers = range(first, min(first + size, scenes.plans))
        part_file = PARTS.file(_origin(scenes, split, seed, first, size)) if scenes.plans > size else None
        of_part = replace(scenes, plans=len(numbers))
        part = read_cached(part_file, of_part, split, seed, PARTS)
        if part is None:
            part = generate_episodes(scenes, split, seed, progress, numbers=numbers)
            PARTS.write(part_file, partial(part.save, scenes=of_part, split=split, seed=seed))
        progress(numbers.stop)
        parts.append(part)
        part_files.append(part_file)
        check_distances(sum(len(each.field_at) for each in parts), sum(len(each.field) for each in parts))
    generated = Episodes.join(parts)
    SETS.write(file, partial(generated.save, scenes=scenes, split=split, seed=seed))
    for part_file in part_files:
        with suppress(OSError):
            if part_file is not None:
                part_file.unlink(missing_ok=True)
    return generated
