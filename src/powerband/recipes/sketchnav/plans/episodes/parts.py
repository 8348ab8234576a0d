"""Parts of an episode set: generates them, and writes them to and reads them from the user's cache folder.

As a program, this module writes the missing parts of a set, see `part_processes`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from powerband.core.machine.disk_cache import DiskCache
from powerband.recipes.sketchnav import settings
from powerband.recipes.sketchnav.plans import cell_codes, distance, plan, sketch
from powerband.recipes.sketchnav.plans.episodes import builder, episodes, generation
from powerband.recipes.sketchnav.plans.episodes.episodes import VERSION, Episodes
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes
from powerband.recipes.sketchnav.settings import EpisodeConfig, Split

PART_PLANS, MOST_PARTS = 8, 32
"""Smallest number of plans of a part, which takes some seconds, and largest number of parts of a set."""
CACHE_MESSAGES = (
    "cached episodes are generated again",
    "the generated episodes are not cached",
    ", or write cache_episodes=false",
)
"""Warnings about files of episodes and of parts, and the advice after a failed write."""
PARTS = DiskCache("episode-parts", 2 * MOST_PARTS, *CACHE_MESSAGES)


@cache
def source_digest() -> str:
    """Returns the hexadecimal SHA-256 of the source of the modules that generate episodes, and of numpy's version.

    It is a part of the name of cache files, so that a change of the modules makes old files unused.
    """
    digest = hashlib.sha256(np.__version__.encode())
    for module in (settings, distance, episodes, builder, generation, plan, sketch, cell_codes):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()


def origin(*values: object) -> bytes:
    """Returns the bytes on which the name of a cache file depends: `values`, and the code that generates episodes."""
    values = tuple(asdict(value) if isinstance(value, EpisodeConfig) else value for value in values)
    return json.dumps([VERSION, source_digest(), *values], sort_keys=True).encode()


def read_cached(file: Path | None, scenes: EpisodeConfig, split: Split, seed: int, files: DiskCache) -> Episodes | None:
    """Reads an episode set from its cache file.

    Args:
        file: Path of a `DiskCache`; None counts as a file that does not exist.
        scenes: Expected distribution of the episodes.
        split: Expected split.
        seed: Expected seed.
        files: Cache to which the file belongs.

    Returns:
        The episodes; None if there is no file and, with a warning, if the file is damaged or holds another set.
    """

    def load(file: Path) -> Episodes:
        cached, metadata = Episodes.load(file)
        found = (metadata["scenes"], metadata["split"], metadata["seed"])
        if found != (asdict(scenes), split, str(seed)) or "sha256" not in metadata:
            raise ValueError(f"{file} holds an episode set of other scenes, split or seed")
        return cached

    return files.read(file, load)


@dataclass(frozen=True)
class Part:
    """A part of an episode set.

    Attributes:
        numbers: Numbers of its plans.
        scenes: Distribution of its episodes: that of the set, with the number of its plans.
        file: Its file in the cache; None if parts of this set are not cached.
    """

    numbers: range
    scenes: EpisodeConfig
    file: Path | None

    @property
    def missing(self) -> bool:
        """True if the cache has no file of this part."""
        return self.file is None or not os.path.exists(self.file)


def parts_of(scenes: EpisodeConfig, split: Split, seed: int) -> list[Part]:
    """Returns the parts of an episode set in the order of its plans."""
    size = max(PART_PLANS, -(-scenes.plans // MOST_PARTS))
    parts = []
    for first in range(0, scenes.plans, size):
        numbers = range(first, min(first + size, scenes.plans))
        file = PARTS.file(origin(scenes, split, seed, first, size)) if scenes.plans > size else None
        parts.append(Part(numbers, replace(scenes, plans=len(numbers)), file))
    return parts


def from_place(parts: list[Part], begin: float) -> list[tuple[int, Part]]:
    """Returns all parts with their indices, from the place `begin` (0 to 1) of the list on, and then from its start."""
    numbered = list(enumerate(parts))
    first = int(begin * len(parts))
    return numbered[first:] + numbered[:first]


def generate_part(
    part: Part, scenes: EpisodeConfig, split: Split, seed: int, progress: Callable[[int], object] = lambda done: None
) -> Episodes:
    """Generates a part of the set with the distribution `scenes`, and writes it to the cache.

    Args:
        part: Part of `parts_of` the set.
        scenes: Distribution of the episodes of the set.
        split: Split of the episodes.
        seed: Seed of the episodes.
        progress: Callback after each plan.

    Raises:
        ConfigError: A plan has no path of the required length.
    """
    episodes = generate_episodes(scenes, split, seed, progress, numbers=part.numbers)
    PARTS.write(part.file, partial(episodes.save, scenes=part.scenes, split=split, seed=seed))
    return episodes


def write_missing_parts(scenes: EpisodeConfig, split: Split, seed: int, begin: float) -> None:
    """Generates the parts that the cache does not have, from the place `begin` of the set on (see `from_place`)."""
    for _, part in from_place(parts_of(scenes, split, seed), begin):
        if part.missing:
            generate_part(part, scenes, split, seed)


def main() -> None:
    """Writes the missing parts of the set in the first argument: JSON with scenes, split, seed and begin."""
    request = json.loads(sys.argv[1])
    write_missing_parts(EpisodeConfig(**request["scenes"]), request["split"], request["seed"], request["begin"])


if __name__ == "__main__":
    main()
