"""Episodes: generates, saves and loads the floor plans, starts, goals and sketches of a split, from a seed.

A set can be saved as a safetensors file with metadata, which contains no code. The splits ``train`` and ``val_seen``
share their plans; ``val_unseen`` has other plans. Each split has its own episodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.config.texts import SHOWN_PATH, shortened, some_of
from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.cell_codes import CELL_M
from powerband.recipes.sketchnav.plans.distance import (
    DISTANCE_UNIT_M,
    distance_field,
    largest_component,
    navigable,
    shortest_path,
)
from powerband.recipes.sketchnav.plans.plan import Plan, generate_plan
from powerband.recipes.sketchnav.plans.sketch import downsample_page, draw_sketch
from powerband.recipes.sketchnav.settings import SPLITS, EpisodeConfig, Split

VERSION = 1
"""Version of the files of episodes and of the recordings of demonstrations."""
UNSEEN = 1_000_000
"""Number of the first plan of val_unseen."""
HEADINGS = 36
"""Headings of an agent, 10 degrees apart."""
COORDINATE_UNIT_M = 1 / 64_000
"""Unit of coordinates in metres: 1/64 mm. Positions are integers, so that they are the same bits on every device."""
CELL_UNITS = round(CELL_M / COORDINATE_UNIT_M)
"""Side of a cell in units of coordinates."""
MAX_GOAL_TRIES = 200
"""Number of goals that are tried in a plan before generation fails with an error."""


@dataclass(frozen=True)
class Episodes:
    """E episodes in P plans with F goals. Coordinates are in 1/64 mm.

    A plan has H x W cells, a shortest path has L corners, and a sketch has s x s pixels. Arrays whose size differs
    between plans or paths are concatenated. An array of offsets has the first index of each plan, goal or path.

    The names of the fields are the names of the tensors in files.

    Attributes:
        cells: Codes of the cells of all plans (sum of H W,) uint8: numbers for floor, wall, door frame or furniture.
        field: Length of the shortest path from each cell to each goal (sum of H W,) int16, in units of 2 mm; -1 for
            cells without a path.
        cells_at: Offsets of the plans in `cells` (P,) int64.
        field_at: Offsets of the goals in `field` (F,) int64.
        size: Heights and widths of the plans in cells (P, 2) int32.
        plan: Index of the plan of each episode (E,) int32.
        goal: Index, 0 to F - 1, of the goal of each episode (E,) int32.
        start: Starts (E, 3) int32: x, y, and heading in tens of degrees.
        target: Positions (x, y) of the goals (E, 2) int32.
        length: Lengths of the shortest paths in metres (E,) float64.
        way: Corners (x, y) of the shortest paths (sum of L, 2) int32.
        left: Remaining metres of the path from each corner (sum of L,) float64.
        way_at: Offsets of the paths in `way` (E + 1,) int64.
        sketch: Sketches (E, 3, s, s) uint8.
    """

    cells: Tensor
    field: Tensor
    cells_at: Tensor
    field_at: Tensor
    size: Tensor
    plan: Tensor
    goal: Tensor
    start: Tensor
    target: Tensor
    length: Tensor
    way: Tensor
    left: Tensor
    way_at: Tensor
    sketch: Tensor

    def __len__(self) -> int:
        return self.plan.shape[0]

    def to(self, device: torch.device | str) -> Episodes:
        """Returns the episodes on a device."""
        return Episodes(**{name: value.to(device) for name, value in vars(self).items()})

    def plan_cells(self, plan: int) -> np.ndarray:
        """Returns the cells (H rows, W columns) uint8 of plan number `plan`: codes for floor, wall, furniture."""
        height, width = self.size[plan].tolist()
        first = int(self.cells_at[plan])
        return self.cells[first : first + height * width].view(height, width).cpu().numpy()

    def path_corners(self, episode: int) -> np.ndarray:
        """Returns the L corners (L, 2), x and y in metres, of the shortest path of episode number `episode`."""
        first, last = self.way_at[episode : episode + 2].tolist()
        return self.way[first:last].cpu().numpy() * COORDINATE_UNIT_M

    def digest(self) -> str:
        """Returns the hexadecimal SHA-256 of the names, types, shapes and bytes of all tensors."""
        digest = hashlib.sha256()
        for name, value in vars(self).items():
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.contiguous().cpu().numpy())
        return digest.hexdigest()

    def save(self, path: Path, scenes: EpisodeConfig, split: Split, seed: int) -> None:
        """Writes a file that `load` reads. A failed write leaves no incomplete file at `path`.

        Args:
            path: File to write.
            scenes: Distribution from which the episodes were generated, for the metadata.
            split: Split of the episodes, for the metadata.
            seed: Seed of the episodes, for the metadata.
        """
        from safetensors.torch import save_file

        metadata = {"version": str(VERSION), "split": split, "seed": str(seed), "scenes": json.dumps(asdict(scenes))}
        metadata["sha256"] = self.digest()
        part = path.with_suffix(".part")
        save_file({name: value.contiguous().cpu() for name, value in vars(self).items()}, part, metadata)
        part.rename(path)

    @classmethod
    def load(cls, path: Path) -> tuple[Episodes, dict[str, Any]]:
        """Reads a file of episodes.

        Returns:
            The episodes, and the metadata: version, split, seed, scenes (fields of `EpisodeConfig`) and sha256.

        Raises:
            ConfigError: The file is missing, is not a file of episodes, has another version, or is damaged.
        """
        from safetensors import SafetensorError, safe_open

        name = shortened(path, SHOWN_PATH)
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{name} cannot be read: {shortened(error, 120)}. Name a file that `powerband train sketchnav "
                f"episodes` has written."
            ) from None
        if metadata.get("version") != str(VERSION):
            raise ConfigError(
                f"{name} has format version {shortened(metadata.get('version', 'unknown'))}, but powerband reads "
                f"version {VERSION}. Generate the episodes again with `powerband train sketchnav episodes`."
            )
        if tensors.keys() != cls.__dataclass_fields__.keys():
            raise ConfigError(
                f"{name} is not a file of episodes: it contains {some_of(sorted(tensors), 3)}. Name a file that "
                f"`powerband train sketchnav episodes` has written."
            )
        episodes = cls(**tensors)
        if "sha256" in metadata and metadata["sha256"] != episodes.digest():  # early files have no digest
            raise ConfigError(
                f"{name} is damaged: its digest has changed. Generate the episodes again with `powerband train "
                f"sketchnav episodes`."
            )
        return episodes, {**metadata, "scenes": json.loads(metadata["scenes"])}


def load_episode_file(path: Path) -> Episodes:
    """Reads the file of training episodes that the option `episode_file` names.

    Raises:
        ConfigError: The file is not a valid file of episodes.
    """
    try:
        return Episodes.load(path)[0]
    except ValueError as error:
        raise ConfigError(f"episode_file: {error}") from None


def generate_episodes(
    scenes: EpisodeConfig, split: Split, seed: int, progress: Callable[[int], object] = lambda done: None
) -> Episodes:
    """Generates the episodes of a split. The level `scenes.sketch` changes only the sketches.

    Args:
        scenes: Distribution of the episodes.
        split: Split of episodes.
        seed: Seed, 0 or more; the same seed generates the same set.
        progress: Callback that receives the number of finished plans.

    Raises:
        ConfigError: A plan has no path of the required length.
    """
    if split not in SPLITS:
        raise ConfigError(f"Unknown split {split!r}. Available: {', '.join(SPLITS)}.")
    parts: dict[str, list[Any]] = {name: [] for name in Episodes.__dataclass_fields__}
    cells_at = field_at = goals = 0
    way_at = [0]
    for number in range(scenes.plans):
        plan = generate_numbered_plan(scenes, split, seed, number)
        free = largest_component(navigable(plan.cells))
        rng = np.random.default_rng([seed, 1 + SPLITS.index(split), number])
        parts["cells"].append(plan.cells.ravel())
        parts["cells_at"].append(cells_at)
        parts["size"].append(plan.cells.shape)
        cells_at += plan.cells.size
        for _ in range(scenes.goals):
            goal = _sample_goal(scenes, plan, free, rng)
            if goal is None:
                raise ConfigError(
                    f"Plan {number} of {split} has no path of {scenes.min_path_m:g} to {scenes.max_path_m:g} m that is "
                    f"at least {scenes.min_path_ratio:g} times as long as the straight line. Lower scenes.min_path_m "
                    f"or scenes.min_path_ratio, or raise scenes.max_path_m."
                )
            field, target, starts = goal
            parts["field"].append(field.ravel())
            parts["field_at"].append(field_at)
            field_at += field.size
            for start, heading, path in starts:
                metres = (path + 0.5) * CELL_M
                legs = np.hypot(*np.diff(metres, axis=0).T)
                left = np.concatenate([np.cumsum(legs[::-1])[::-1], [0.0]])
                way_at.append(way_at[-1] + len(path))
                parts["plan"].append(number)
                parts["goal"].append(goals)
                parts["start"].append((*_cell_centre(start), heading))
                parts["target"].append(_cell_centre(target))
                parts["length"].append(field[start[1], start[0]] * DISTANCE_UNIT_M)
                parts["way"].append(path * CELL_UNITS + CELL_UNITS // 2)
                parts["left"].append(left)
                start_m, target_m = ((np.array(cell) + 0.5) * CELL_M for cell in (start, target))
                episode = len(parts["sketch"])
                sketch_rng = np.random.default_rng([seed, 1 + len(SPLITS) + SPLITS.index(split), episode])
                page = draw_sketch(plan, start_m, target_m, metres, scenes.level(episode), sketch_rng)
                parts["sketch"].append(downsample_page(page, scenes.sketch_px))
            goals += 1
        progress(number + 1)
    ragged = {name: np.concatenate(parts[name]) for name in ("cells", "field", "way", "left")}
    stacked = {name: np.array(parts[name]) for name in parts if name not in ragged and name != "way_at"}
    dtypes = {"cells_at": np.int64, "field_at": np.int64, "length": np.float64, "sketch": np.uint8}
    arrays = {name: value.astype(dtypes.get(name, np.int32)) for name, value in stacked.items()}
    arrays |= {**ragged, "way": ragged["way"].astype(np.int32), "way_at": np.array(way_at, np.int64)}
    return Episodes(**{name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()})


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
    scenes: EpisodeConfig, plan: Plan, free: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, tuple[int, int], list[tuple[tuple[int, int], int, np.ndarray]]] | None:
    """Samples a goal with enough starts at a valid distance.

    Args:
        scenes: Limits of the path length, and number of starts.
        plan: Floor plan.
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


def _cell_centre(cell: tuple[int, int]) -> tuple[int, int]:
    """Returns the centre (x, y) of the cell (column, row), in units of 1/64 mm."""
    return cell[0] * CELL_UNITS + CELL_UNITS // 2, cell[1] * CELL_UNITS + CELL_UNITS // 2
