"""Habitat: reads PointNav episodes in the JSON format of Habitat, in top-down maps that the user provides.

The format is that of ``PointNavDatasetV1``: a JSON file (also ``.json.gz``) with a list ``episodes``; if the list is
empty, the files ``content/SCENE.json.gz`` next to it have the episodes. World coordinates are metres, with y up and -z
ahead. A map is a picture with a map file that states ``resolution`` and ``corner``.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from powerband.core.config.texts import some_of
from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.cell_codes import CELL_M
from powerband.recipes.sketchnav.plans.distance import (
    BLOCKED,
    DISTANCE_UNIT_M,
    distance_field,
    largest_component,
    navigable,
    shortest_path,
)
from powerband.recipes.sketchnav.plans.episodes.builder import EpisodeBuilder
from powerband.recipes.sketchnav.plans.episodes.episodes import HEADINGS, Episodes
from powerband.recipes.sketchnav.plans.imported.plan_files import ImportedPlan
from powerband.recipes.sketchnav.settings import EpisodeConfig, Split

MAX_JSON_BYTES = 128 * 2**20
"""Largest size of a JSON file after decompression."""
SNAP_M = 0.3
"""Largest distance from a start or goal to the nearest cell in which the agent fits."""
SAME_FLOOR_M = 0.5
"""Largest difference between the height of a position and the height of its floor."""
NOT_FREE = "have a start or goal that is not in free space"
AT_GOAL = "start at their goal"
TOO_FAR = "have a goal with a path of more than 65 m in their map"
"""Causes for which an episode is left out. A distance field holds 15 bits in units of 2 mm."""
LENGTH_RATIO = (0.75, 1.3)
"""Range of the median ratio of path lengths in the map to those in the file; another ratio means a wrong scale."""


@dataclass(frozen=True)
class HabitatEpisode:
    """One episode of a file.

    Attributes:
        scene: Name of the scene, without folder and suffix.
        start: World position (x, y, z) of the start in metres.
        goal: World position (x, y, z) of the goal in metres.
        heading: Heading in tens of degrees, clockwise from the x axis as seen from above.
        length: Length of the shortest path in the file, in metres; nan if the file has none.
    """

    scene: str
    start: tuple[float, float, float]
    goal: tuple[float, float, float]
    heading: int
    length: float


def read_habitat_episodes(path: Path) -> list[HabitatEpisode]:
    """Reads the episodes of a file, or of the files in ``content`` next to it.

    Raises:
        ConfigError: A file is larger than 128 MiB after decompression, or is not of the format.
    """
    found = _read_file(path)
    if found:
        return found
    folder = path.parent / "content"
    for part in sorted([*folder.glob("*.json.gz"), *folder.glob("*.json")]):
        found += _read_file(part)
    if not found:
        raise ConfigError(
            f"{path} has no episodes, and {folder} has no files of scenes. Name a PointNav file of Habitat, or write "
            f"episodes with `powerband train sketchnav episodes`."
        )
    return found


def _read_file(path: Path) -> list[HabitatEpisode]:
    """Reads the list of episodes of one file.

    Raises:
        ConfigError: The file is not valid.
    """
    content = _read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("episodes"), list):
        raise ConfigError(f"{path} has no list of episodes. Name a PointNav file of Habitat (.json or .json.gz).")
    return [_parse(path, number, entry) for number, entry in enumerate(content["episodes"])]


def _read_json(path: Path) -> Any:
    """Reads a JSON file, compressed if its name ends with ``.gz``; reading stops at the limit of its size.

    Raises:
        ConfigError: The file is missing, too large or not JSON.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Name a PointNav file of Habitat.") from None
    if len(content) > MAX_JSON_BYTES:
        raise ConfigError(
            f"{path} has more than {MAX_JSON_BYTES // 2**20} MiB of JSON. Split it into one file per scene, in a "
            f"folder `content` next to a file with an empty list of episodes, as Habitat does."
        )
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}. Name a PointNav file of Habitat.") from None


def _parse(path: Path, number: int, entry: Any) -> HabitatEpisode:
    """Reads one entry of the list of episodes.

    Raises:
        ConfigError: An entry lacks a field, or a position is not three finite numbers.
    """
    try:
        x, y, z, w = (float(each) for each in entry["start_rotation"])
        ahead_x, ahead_z = -2 * (x * z + w * y), -(1 - 2 * (x * x + y * y))  # the axis -z, rotated
        heading = round(math.atan2(ahead_z, ahead_x) / (2 * math.pi) * HEADINGS) % HEADINGS
        length = (entry.get("info") or {}).get("geodesic_distance")
        return HabitatEpisode(
            scene=Path(str(entry["scene_id"])).name.split(".")[0],
            start=_position(entry["start_position"]),
            goal=_position(entry["goals"][0]["position"]),
            heading=heading,
            length=float(length) if length is not None else math.nan,
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(
            f"{path}: episode {number} is not a PointNav episode ({type(error).__name__}: {error}). It needs scene_id, "
            f"start_position, start_rotation and goals[0].position."
        ) from None


def _position(values: Any) -> tuple[float, float, float]:
    """Returns three finite numbers, or raises ValueError."""
    x, y, z = (float(each) for each in values)
    if not all(map(math.isfinite, (x, y, z))):
        raise ValueError(f"{values} is not finite")
    return x, y, z


def habitat_episodes(
    path: Path, plans: Iterable[ImportedPlan], scenes: EpisodeConfig, split: Split, seed: int
) -> tuple[Episodes, str]:
    """Reads the episodes of a file that take place in the given maps.

    At most ``scenes.goals * scenes.starts`` episodes of each map are taken, evenly spaced over the file. Episodes are
    left out if start and goal are on different floors, if one of them is not within 0.3 m of free space, if start and
    goal are the same, or if a path of the map to the goal is longer than 65 m.

    Args:
        path: PointNav file.
        plans: Maps.
        scenes: Number of episodes per map, and level and size of the sketches.
        split: Split, which selects the random numbers of the sketches.
        seed: Seed of the sketches.

    Returns:
        The episodes, and a sentence about how many were taken and left out.

    Raises:
        ConfigError: The file or a map is not valid, no scene has a map, or the maps do not fit the episodes.
    """
    by_scene: dict[str, list[HabitatEpisode]] = {}
    for episode in read_habitat_episodes(path):
        by_scene.setdefault(episode.scene, []).append(episode)
    builder, tried, ratios, used = EpisodeBuilder(scenes, split, seed), 0, [], set()
    left_out: Counter[str] = Counter()
    for imported in plans:
        map_file = imported.map
        if map_file is None or map_file.corner is None:
            raise ConfigError(
                f"{imported.name} does not state its place in the world of Habitat. Put a YAML file next to its "
                f"picture, with image, resolution and corner: [x, z], the lower bound of pathfinder.get_bounds()."
            )
        chosen = _on_floor(by_scene.get(map_file.scene, []), imported)
        if not chosen:
            continue
        used.add(map_file.scene)
        count = min(len(chosen), scenes.goals * scenes.starts)
        chosen = [chosen[number * len(chosen) // count] for number in range(count)]
        tried += count
        ratios += _add_episodes(builder, imported, chosen, left_out)
    if not used:
        raise ConfigError(
            f"{path} has episodes in the scenes {some_of(sorted(by_scene), 5)}, and plans_dir has no map of them for "
            f"training; maps that are held out for val_unseen do not count. Name each map by its scene, such as "
            f"{min(by_scene)}.yaml, or write scene: NAME into its YAML file."
        )
    if 2 * len(builder) < tried:
        raise ConfigError(
            f"{path}: {tried - len(builder)} of {tried} episodes do not fit their maps: "
            f"{', '.join(f'{count} {cause}' for cause, count in left_out.most_common())}. Check resolution and corner "
            f"in the YAML files of {some_of(sorted(used), 3)}, and remove episodes that start at their goal."
        )
    stated = [ratio for ratio in ratios if math.isfinite(ratio)]
    median = float(np.median(stated)) if stated else 1.0
    if not LENGTH_RATIO[0] <= median <= LENGTH_RATIO[1]:
        raise ConfigError(
            f"{path}: shortest paths in the maps are {median:.2f} times as long as geodesic_distance in the file "
            f"(median); {LENGTH_RATIO[0]:g} to {LENGTH_RATIO[1]:g} is possible. Check resolution in the YAML files."
        )
    without = f", {len(by_scene) - len(used)} scenes have no map for training" if len(by_scene) > len(used) else ""
    return builder.build(), f"{len(builder):,} episodes of {path.name}, {tried - len(builder)} left out{without}"


def _on_floor(episodes: list[HabitatEpisode], imported: ImportedPlan) -> list[HabitatEpisode]:
    """Returns the episodes of a scene that stay on the floor of a map.

    Raises:
        ConfigError: The map does not state its floor, and starts are at several heights.
    """
    assert imported.map is not None
    floor = imported.map.floor
    if floor is None:
        heights = [episode.start[1] for episode in episodes]
        if heights and max(heights) - min(heights) > 2 * SAME_FLOOR_M:
            raise ConfigError(
                f"{imported.name}: episodes of {imported.map.scene} start at heights of {min(heights):.1f} to "
                f"{max(heights):.1f} m, which are several floors. Write a map per floor, with floor: HEIGHT in its "
                f"YAML file."
            )
        return [each for each in episodes if abs(each.start[1] - each.goal[1]) <= SAME_FLOOR_M]
    return [each for each in episodes if all(abs(y - floor) <= SAME_FLOOR_M for y in (each.start[1], each.goal[1]))]


def _add_episodes(
    builder: EpisodeBuilder, imported: ImportedPlan, chosen: list[HabitatEpisode], left_out: Counter[str]
) -> list[float]:
    """Adds the episodes that fit a map, and returns the ratio of each path length to the length in the file.

    Args:
        builder: Receives plan, goals and episodes.
        imported: The map.
        chosen: Episodes in the scene of the map.
        left_out: Causes for which episodes are left out; this function counts them.
    """
    free = largest_component(navigable(imported.plan.cells))
    places = np.argwhere(free)
    fields: dict[tuple[int, int], list[HabitatEpisode]] = {}
    for episode in chosen:
        goal = _nearest(imported, places, episode.goal)
        if goal is None:
            left_out[NOT_FREE] += 1
        else:
            fields.setdefault(goal, []).append(episode)
    ratios: list[float] = []
    plan_added = False
    for goal, episodes in fields.items():
        field = distance_field(free, *goal)
        if (field[free] == BLOCKED).any():
            left_out[TOO_FAR] += len(episodes)
            continue
        goal_added = False
        for episode in episodes:
            start = _nearest(imported, places, episode.start)
            if start is None or start == goal:
                left_out[NOT_FREE if start is None else AT_GOAL] += 1
                continue
            if not plan_added:
                builder.add_plan(imported.plan)
            if not goal_added:
                builder.add_goal(field, goal)
            plan_added = goal_added = True
            builder.add_episode(start, episode.heading, shortest_path(free, field, *start))
            ratios.append(float(field[start[1], start[0]]) * DISTANCE_UNIT_M / (episode.length or math.nan))
    return ratios


def _nearest(
    imported: ImportedPlan, places: np.ndarray, position: tuple[float, float, float]
) -> tuple[int, int] | None:
    """Returns the cell (column, row) of `places` (n, 2) nearest to a world position; None if it is too far away."""
    column, row = imported.cell_at(position[0], position[2])
    away = np.hypot(places[:, 1] + 0.5 - column, places[:, 0] + 0.5 - row) * CELL_M
    nearest = int(away.argmin())
    return (int(places[nearest, 1]), int(places[nearest, 0])) if away[nearest] <= SNAP_M else None
