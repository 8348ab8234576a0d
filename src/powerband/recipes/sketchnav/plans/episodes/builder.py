"""EpisodeBuilder: collects plans, goals and starts, draws the sketch of each episode, and joins all to `Episodes`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.cell_codes import CELL_M
from powerband.recipes.sketchnav.plans.distance import DISTANCE_UNIT_M
from powerband.recipes.sketchnav.plans.episodes.episodes import CELL_UNITS, Episodes
from powerband.recipes.sketchnav.plans.plan import Plan
from powerband.recipes.sketchnav.plans.sketch import downsample_page, draw_sketch
from powerband.recipes.sketchnav.settings import SPLITS, EpisodeConfig, Split

MAX_FIELD_CELLS = 2**31
"""Largest number of cells of all distance fields, which take two bytes each."""


class EpisodeBuilder:
    """Collects episodes. Call `add_plan`, then `add_goal` for each goal in it, then `add_episode` for each start.

    Args:
        scenes: Level and size of the sketches.
        split: Split of the episodes.
        seed: Seed of the sketches.
        first: Number of the first episode, on which its sketch depends.
    """

    def __init__(self, scenes: EpisodeConfig, split: Split, seed: int, first: int = 0) -> None:
        self.scenes, self.split, self.seed, self.first = scenes, split, seed, first
        self._parts: dict[str, list[Any]] = {name: [] for name in Episodes.__dataclass_fields__}
        self._cells = self._field_cells = 0
        self._way_at = [0]

    def __len__(self) -> int:
        """Number of episodes so far."""
        return len(self._parts["plan"])

    def add_plan(self, plan: Plan) -> None:
        """Adds a floor plan, to which the next goals belong."""
        self._plan = plan
        self._parts["cells"].append(plan.cells.ravel())
        self._parts["cells_at"].append(self._cells)
        self._parts["size"].append(plan.cells.shape)
        self._cells += plan.cells.size

    def add_goal(self, field: np.ndarray, target: tuple[int, int]) -> None:
        """Adds a goal in the last plan, to which the next episodes belong.

        Args:
            field: Path lengths (H rows, W columns) int16 to the goal, from `distance_field`.
            target: Cell (column, row) of the goal.

        Raises:
            ConfigError: All fields together are larger than 4 GiB.
        """
        self._field, self._target = field, target
        self._parts["field"].append(field.ravel())
        self._parts["field_at"].append(self._field_cells)
        self._field_cells += field.size
        check_distances(len(self._parts["field"]), self._field_cells)

    def add_episode(self, start: tuple[int, int], heading: int, path: np.ndarray) -> None:
        """Adds an episode to the last goal, and draws its sketch.

        Args:
            start: Cell (column, row) of the start.
            heading: Heading in tens of degrees.
            path: The L corners (L, 2) int64 of the shortest path as (column, row).
        """
        parts, target = self._parts, self._target
        metres = (path + 0.5) * CELL_M
        legs = np.hypot(*np.diff(metres, axis=0).T)
        self._way_at.append(self._way_at[-1] + len(path))
        parts["plan"].append(len(parts["size"]) - 1)
        parts["goal"].append(len(parts["field"]) - 1)
        parts["start"].append((*_cell_centre(start), heading))
        parts["target"].append(_cell_centre(target))
        parts["length"].append(self._field[start[1], start[0]] * DISTANCE_UNIT_M)
        parts["way"].append(path * CELL_UNITS + CELL_UNITS // 2)
        parts["left"].append(np.concatenate([np.cumsum(legs[::-1])[::-1], [0.0]]))
        start_m, target_m = ((np.array(cell) + 0.5) * CELL_M for cell in (start, target))
        episode = self.first + len(parts["sketch"])
        rng = np.random.default_rng([self.seed, 1 + len(SPLITS) + SPLITS.index(self.split), episode])
        page = draw_sketch(self._plan, start_m, target_m, metres, self.scenes.level(episode), rng)
        parts["sketch"].append(downsample_page(page, self.scenes.sketch_px))

    def build(self) -> Episodes:
        """Joins all plans, goals and episodes. There must be at least one of each."""
        parts = self._parts
        ragged = {name: np.concatenate(parts[name]) for name in ("cells", "field", "way", "left")}
        stacked = {name: np.array(parts[name]) for name in parts if name not in ragged and name != "way_at"}
        dtypes = {"cells_at": np.int64, "field_at": np.int64, "length": np.float64, "sketch": np.uint8}
        arrays = {name: value.astype(dtypes.get(name, np.int32)) for name, value in stacked.items()}
        arrays |= {**ragged, "way": ragged["way"].astype(np.int32), "way_at": np.array(self._way_at, np.int64)}
        return Episodes(**{name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()})


def check_distances(goals: int, cells: int) -> None:
    """Refuses distance fields of `goals` goals with `cells` cells in total that are larger than 4 GiB.

    Raises:
        ConfigError: They are.
    """
    if cells > MAX_FIELD_CELLS:
        raise ConfigError(
            f"The {goals:,} goals so far have {cells:,} cells of distances; the limit is {MAX_FIELD_CELLS:,}. Lower "
            f"scenes.goals or scenes.plans."
        )


def _cell_centre(cell: tuple[int, int]) -> tuple[int, int]:
    """Returns the centre (x, y) of the cell (column, row), in units of 1/64 mm."""
    return cell[0] * CELL_UNITS + CELL_UNITS // 2, cell[1] * CELL_UNITS + CELL_UNITS // 2
