"""Generates the episodes of a split from a seed, in generated floor plans or in plans that the user provides.

The splits ``train`` and ``val_seen`` share their plans, and ``val_unseen`` has other plans. No split shares episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

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
from powerband.recipes.sketchnav.plans.plan import Plan, generate_plan
from powerband.recipes.sketchnav.settings import SPLITS, EpisodeConfig, Split

UNSEEN = 1_000_000
"""Number of the first plan of val_unseen."""
MAX_GOAL_TRIES = 200
"""Number of goals that are tried in a plan before generation fails with an error."""


def generate_episodes(
    scenes: EpisodeConfig,
    split: Split,
    seed: int,
    progress: Callable[[int], object] = lambda done: None,
    plans: Sequence[Plan] = (),
    numbers: range | None = None,
) -> Episodes:
    """Generates the episodes of a split, or of some of its plans. The level `scenes.sketch` changes only the sketches.

    Args:
        scenes: Distribution of the episodes.
        split: Split of episodes.
        seed: Seed, 0 or more; the same seed generates the same set.
        progress: Callback that receives the number of finished plans.
        plans: Floor plans to use; empty generates `scenes.plans` plans.
        numbers: Numbers of the plans whose episodes are generated; None takes all. `Episodes.join` joins such parts.

    Raises:
        ConfigError: A plan has no path of the required length.
    """
    if split not in SPLITS:
        raise ConfigError(f"Unknown split {split!r}. Available: {', '.join(SPLITS)}.")
    numbers = range(len(plans) or scenes.plans) if numbers is None else numbers
    builder = EpisodeBuilder(scenes, split, seed, numbers.start * scenes.goals * scenes.starts)
    for number in numbers:
        plan = plans[number] if plans else generate_numbered_plan(scenes, split, seed, number)
        free = largest_component(navigable(plan.cells))
        rng = np.random.default_rng([seed, 1 + SPLITS.index(split), number])
        builder.add_plan(plan)
        for _ in range(scenes.goals):
            goal = _sample_goal(scenes, free, rng)
            if goal is None:
                raise ConfigError(
                    f"Plan {number} of {split} has no path of {scenes.min_path_m:g} to {scenes.max_path_m:g} m that is "
                    f"at least {scenes.min_path_ratio:g} times as long as the straight line. Lower scenes.min_path_m "
                    f"or scenes.min_path_ratio, or raise scenes.max_path_m."
                )
            field, target, starts = goal
            builder.add_goal(field, target)
            for start, heading, path in starts:
                builder.add_episode(start, heading, path)
        progress(number + 1)
    return builder.build()


def generate_numbered_plan(scenes: EpisodeConfig, split: Split, seed: int, number: int) -> Plan:
    """Generates one floor plan of a split.

    Args:
        scenes: Smallest and largest size of a plan.
        split: Split of episodes; ``val_unseen`` has other plans than ``train`` and ``val_seen``.
        seed: Seed of the episodes.
        number: Number of the plan, from 0.
    """
    return generate_plan(
        np.random.default_rng([seed, 0, number + UNSEEN * (split == "val_unseen")]),
        scenes.min_size_m,
        scenes.max_size_m,
    )


def _sample_goal(
    scenes: EpisodeConfig, free: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, tuple[int, int], list[tuple[tuple[int, int], int, np.ndarray]]] | None:
    """Samples a goal with enough starts at a valid distance.

    Args:
        scenes: Limits of the path length, and number of starts.
        free: Navigable cells (H rows, W columns) bool.
        rng: Random generator.

    Returns:
        (distance field (H, W), cell of the goal, starts), with a start as (cell, heading in tens of degrees, corners of
        its path). None if no goal was valid in any try.
    """
    places = np.argwhere(free)
    for _ in range(MAX_GOAL_TRIES):
        y, x = places[rng.integers(len(places))]
        field = distance_field(free, int(x), int(y))
        if (field[free] == BLOCKED).any():
            continue  # a part of a large plan is farther away than a distance field can state
        metres = field[places[:, 0], places[:, 1]] * DISTANCE_UNIT_M
        straight = np.hypot(places[:, 0] - y, places[:, 1] - x) * CELL_M
        inside = (metres >= scenes.min_path_m) & (metres <= scenes.max_path_m)
        valid = places[inside & (metres >= scenes.min_path_ratio * straight)]
        if len(valid) < scenes.starts:
            continue
        starts = []
        for sy, sx in valid[rng.choice(len(valid), scenes.starts, replace=False)]:
            path = shortest_path(free, field, int(sx), int(sy))
            starts.append(((int(sx), int(sy)), int(rng.integers(HEADINGS)), path))
        return field, (int(x), int(y)), starts
    return None
