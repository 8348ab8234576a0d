"""Caches generated episode sets as files in the user's cache folder, which the next start reads.

A set is generated in parts, which are cached too until the set is complete. A start after a kill continues after the
last finished part.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from powerband.core.machine.disk_cache import DiskCache
from powerband.recipes.sketchnav.plans.episodes.builder import check_distances
from powerband.recipes.sketchnav.plans.episodes.episodes import Episodes
from powerband.recipes.sketchnav.plans.episodes.part_processes import part_processes, process_count
from powerband.recipes.sketchnav.plans.episodes.parts import (
    CACHE_MESSAGES,
    PARTS,
    Part,
    from_place,
    generate_part,
    origin,
    parts_of,
    read_cached,
)
from powerband.recipes.sketchnav.settings import EpisodeConfig, Split

MIN_CACHED_EPISODES = 400
"""Smaller sets are not cached, because they are generated within two seconds."""
SETS = DiskCache("episodes", 20, *CACHE_MESSAGES)


def cache_path(scenes: EpisodeConfig, split: Split, seed: int) -> Path | None:
    """Returns the path of the cache file of an episode set; None if the user has no home folder.

    Args:
        scenes: Distribution of the episodes.
        split: Split of episodes.
        seed: Seed of the episodes.
    """
    return SETS.file(origin(scenes, split, seed))


def generate_cached(
    file: Path, scenes: EpisodeConfig, split: Split, seed: int, progress: Callable[[int], object]
) -> Episodes:
    """Generates an episode set in parts and writes it to its cache file; parts of an earlier start are read.

    Other processes of this machine generate parts at the same time: those of `part_processes`, or the other ranks, each
    of which begins at another place of the set. A failed write leaves no incomplete file (see `DiskCache.write`).

    Args:
        file: Path from `cache_path`.
        scenes: Distribution of the episodes.
        split: Split of the episodes.
        seed: Seed of the episodes.
        progress: Callback that receives the number of finished plans.

    Raises:
        ConfigError: A plan has no path of the required length, or all distances together are larger than 4 GiB.
    """
    parts, damaged = parts_of(scenes, split, seed), file.exists()
    found: dict[int, Episodes] = {}

    def show_progress(current: Part, number: int) -> None:
        """Adds the plans of the current part before `number` to those of all finished parts."""
        finished = [part for index, part in enumerate(parts) if index in found or not part.missing]
        plans = sum(len(part.numbers) for part in finished)
        progress(plans if current in finished else plans + number - current.numbers.start)

    count = process_count(sum(part.missing for part in parts))
    begin = int(os.environ.get("LOCAL_RANK", 0)) / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    with part_processes(count, scenes, split, seed):
        for index, part in from_place(parts, begin):
            episodes = read_cached(part.file, part.scenes, split, seed, PARTS)
            if episodes is None:
                complete = None if damaged else read_cached(file, scenes, split, seed, SETS)  # of another rank
                if complete is not None:
                    return complete
                episodes = generate_part(part, scenes, split, seed, partial(show_progress, part))
            found[index] = episodes
            show_progress(part, part.numbers.stop)
            so_far = found.values()
            check_distances(sum(len(each.field_at) for each in so_far), sum(len(each.field) for each in so_far))
    generated = Episodes.join([found[index] for index in range(len(parts))])
    SETS.write(file, partial(generated.save, scenes=scenes, split=split, seed=seed))
    for part in parts:
        with suppress(OSError):
            if part.file is not None:
                part.file.unlink(missing_ok=True)
    return generated
