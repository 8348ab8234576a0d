"""Episodes: which plans there are, where one starts and has to go, and the sketch that is handed out, all drawn ahead.

A set is drawn from a seed and can be kept as a file (safetensors and its metadata; nothing in it is code). Plans of the
splits ``train`` and ``val_seen`` are the same, those of ``val_unseen`` are others; episodes are others in each split.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .distance import LENGTH_M, distance_field, navigable, reachable, shortest_path
from .plan import LEAST_M, MOST_M, Plan, draw_plan
from .sketch import MARGIN, PAGE, draw_sketch, shrunk
from .surfaces import CELL_M

Split = Literal["train", "val_seen", "val_unseen"]
SPLITS: tuple[Split, ...] = ("train", "val_seen", "val_unseen")
VERSION = 1
UNSEEN = 1_000_000
"""Number of the first plan of val_unseen."""
HEADINGS = 36
UNIT_M = 1 / 64_000
"""What a coordinate of 1 is: 1/64 mm, so that positions are whole numbers, the same bits everywhere."""
CELL_UNITS = round(CELL_M / UNIT_M)
TRIES = 200


@dataclass(frozen=True)
class Scenes:
    """What episodes are drawn from.

    Raises:
        ValueError: A range that is empty.
    """

    least_m: float = 8.0
    """Plans are at least so wide and high, in metres (8 to 24)."""
    most_m: float = 24.0
    """Plans are at most so wide and high."""
    plans: int = 200
    """Plans of a split."""
    goals: int = 5
    """Goals in each plan."""
    starts: int = 4
    """Starts for each goal: an episode each."""
    least_way_m: float = 2.0
    """The shortest way from start to goal is at least so long."""
    most_way_m: float = 30.0
    """And at most so long."""
    least_ratio: float = 1.0
    """Least length of the shortest way over the distance as the crow flies."""
    sketch: Literal["smooth", "abstract", "mixed", "true", "blank"] = "mixed"
    """Level of the sketches; mixed is smooth and abstract in turns, true the plan as it is, blank an empty page."""
    sketch_px: int = 64
    """Pixels along the sketch that the policy sees."""

    def __post_init__(self) -> None:
        if not LEAST_M <= self.least_m <= self.most_m <= MOST_M:
            raise ValueError(
                f"least_m={self.least_m:g} and most_m={self.most_m:g}: plans are {LEAST_M:g} to {MOST_M:g} m wide."
            )
        if min(self.plans, self.goals, self.starts) < 1:
            raise ValueError(f"plans={self.plans}, goals={self.goals}, starts={self.starts}: each is 1 or more.")
        if not 0 < self.least_way_m < self.most_way_m:
            raise ValueError(
                f"least_way_m={self.least_way_m:g} and most_way_m={self.most_way_m:g}: give a range above 0."
            )
        if not 1 <= self.least_ratio <= 3:
            raise ValueError(f"least_ratio={self.least_ratio:g}: a way is 1 to 3 times the straight line.")
        if not 16 <= self.sketch_px <= 512:
            raise ValueError(f"sketch_px={self.sketch_px}: give 16 to 512.")

    @property
    def count(self) -> int:
        """Episodes of a split."""
        return self.plans * self.goals * self.starts

    @property
    def page_m(self) -> float:
        """Metres along the page of a plan of middling size."""
        return math.sqrt(self.least_m * self.most_m) * PAGE / (PAGE - 2 * MARGIN)

    def level(self, episode: int) -> str:
        """Level of an episode's sketch."""
        return ("smooth", "abstract")[episode % 2] if self.sketch == "mixed" else self.sketch


@dataclass(frozen=True)
class Episodes:
    """E episodes in P plans with F goals, ragged arrays joined end to end; coordinates in 1/64 mm.

    Attributes:
        cells: (sum H W,) uint8: codes of all plans.
        field: (sum H W,) int16: for each goal, distances of its plan's cells, in 2 mm.
        cells_at: (P,) int64: where a plan begins in `cells`. field_at: (F,) int64 likewise.
        size: (P, 2) int32: height and width in cells.
        plan, goal: (E,) int32: an episode's plan, and its goal among F.
        start: (E, 3) int32: x, y and heading in tens of degrees. target: (E, 2) int32: x, y of the goal.
        length: (E,) float64: metres of the shortest way.
        way: (sum L, 2) int32: corners of the ways. left: (sum L,) float64: metres from a corner on. way_at: (E + 1,)
            int64: where an episode's way begins.
        sketch: (E, 3, s, s) uint8.
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
        """The same on `device`."""
        return Episodes(**{name: value.to(device) for name, value in vars(self).items()})

    def cells_of(self, plan: int) -> np.ndarray:
        """(H, W) uint8 codes of a plan."""
        height, width = self.size[plan].tolist()
        first = int(self.cells_at[plan])
        return self.cells[first : first + height * width].view(height, width).cpu().numpy()

    def way_of(self, episode: int) -> np.ndarray:
        """(L, 2) corners of an episode's way, in metres."""
        first, last = self.way_at[episode : episode + 2].tolist()
        return self.way[first:last].cpu().numpy() * UNIT_M

    def digest(self) -> str:
        """SHA-256 of names, types, shapes and bytes."""
        found = hashlib.sha256()
        for name, value in vars(self).items():
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.contiguous().cpu().numpy())
        return found.hexdigest()

    def save(self, path: Path, scenes: Scenes, split: Split, seed: int) -> None:
        """Writes a file that `load` reads."""
        from safetensors.torch import save_file

        said = {"version": str(VERSION), "split": split, "seed": str(seed), "scenes": json.dumps(asdict(scenes))}
        said["sha256"] = self.digest()
        part = path.with_suffix(".part")
        save_file({name: value.contiguous().cpu() for name, value in vars(self).items()}, part, said)
        part.rename(path)

    @classmethod
    def load(cls, path: Path) -> tuple[Episodes, dict[str, Any]]:
        """Episodes of a file, and what they were drawn from.

        Raises:
            ValueError: No such file, none of episodes, of another version, or its bytes have changed.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt") as file:
                said = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{path}: {error}. Give a file that `powerband train sketchnav episodes` has written."
            ) from None
        if said.get("version") != str(VERSION):
            raise ValueError(
                f"{path} holds episodes of version {said.get('version', 'unknown')}, this is version {VERSION}: draw "
                f"them again with `powerband train sketchnav episodes`."
            )
        if tensors.keys() != cls.__dataclass_fields__.keys():
            raise ValueError(f"{path} holds {', '.join(sorted(tensors))}: no set of episodes.")
        found = cls(**tensors)
        if "sha256" in said and said["sha256"] != found.digest():  # files of earlier days say none
            raise ValueError(f"{path} is damaged: its bytes are not those that were written. Draw it again.")
        return found, {**said, "scenes": json.loads(said["scenes"])}


def draw_episodes(
    scenes: Scenes, split: Split, seed: int, progress: Callable[[int], object] = lambda done: None
) -> Episodes:
    """Draws the episodes of a split; they are the same whatever the level of the sketches.

    Args:
        scenes: What they are drawn from.
        split: train, val_seen or val_unseen.
        seed: 0 or more. The same seed draws the same set.
        progress: Told the number of plans that are done.

    Raises:
        ValueError: No place for a start in some plan.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}: give one of {', '.join(SPLITS)}")
    parts: dict[str, list[Any]] = {name: [] for name in Episodes.__dataclass_fields__}
    cells_at = field_at = goals = 0
    way_at = [0]
    for number in range(scenes.plans):
        plan = plan_of(scenes, split, seed, number)
        free = reachable(navigable(plan.cells))
        rng = np.random.default_rng([seed, 1 + SPLITS.index(split), number])
        parts["cells"].append(plan.cells.ravel())
        parts["cells_at"].append(cells_at)
        parts["size"].append(plan.cells.shape)
        cells_at += plan.cells.size
        for _ in range(scenes.goals):
            found = _episodes_of_goal(scenes, plan, free, rng)
            if found is None:
                raise ValueError(
                    f"plan {number} of {split} has no way of {scenes.least_way_m:g} to {scenes.most_way_m:g} m with a "
                    f"ratio of {scenes.least_ratio:g}: widen the range."
                )
            field, target, starts = found
            parts["field"].append(field.ravel())
            parts["field_at"].append(field_at)
            field_at += field.size
            for start, heading, way in starts:
                metres = (way + 0.5) * CELL_M
                legs = np.hypot(*np.diff(metres, axis=0).T)
                left = np.concatenate([np.cumsum(legs[::-1])[::-1], [0.0]])
                way_at.append(way_at[-1] + len(way))
                parts["plan"].append(number)
                parts["goal"].append(goals)
                parts["start"].append((*_middle(start), heading))
                parts["target"].append(_middle(target))
                parts["length"].append(field[start[1], start[0]] * LENGTH_M)
                parts["way"].append(way * CELL_UNITS + CELL_UNITS // 2)
                parts["left"].append(left)
                ends = [tuple((np.array(cell) + 0.5) * CELL_M) for cell in (start, target)]
                drawn = len(parts["sketch"])
                hand = np.random.default_rng([seed, 1 + len(SPLITS) + SPLITS.index(split), drawn])
                page = draw_sketch(plan, *ends, metres, scenes.level(drawn), hand)
                parts["sketch"].append(shrunk(page, scenes.sketch_px))
            goals += 1
        progress(number + 1)
    joined = {name: np.concatenate(parts[name]) for name in ("cells", "field", "way", "left")}
    stacked = {name: np.array(parts[name]) for name in parts if name not in joined and name != "way_at"}
    types = {"cells_at": np.int64, "field_at": np.int64, "length": np.float64, "sketch": np.uint8}
    arrays = {name: value.astype(types.get(name, np.int32)) for name, value in stacked.items()}
    arrays |= {**joined, "way": joined["way"].astype(np.int32), "way_at": np.array(way_at, np.int64)}
    return Episodes(**{name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()})


def plan_of(scenes: Scenes, split: Split, seed: int, number: int) -> Plan:
    """Plan `number` of a split."""
    return draw_plan(
        np.random.default_rng([seed, 0, number + UNSEEN * (split == "val_unseen")]), scenes.least_m, scenes.most_m
    )


def _episodes_of_goal(
    scenes: Scenes, plan: Plan, free: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, tuple[int, int], list[tuple[tuple[int, int], int, np.ndarray]]] | None:
    """(field, goal, starts with heading and way) of a goal from which enough starts are far enough; None for none."""
    places = np.argwhere(free)
    for _ in range(TRIES):
        y, x = places[rng.integers(len(places))]
        field = distance_field(free, int(x), int(y))
        metres = field[places[:, 0], places[:, 1]] * LENGTH_M
        straight = np.hypot(places[:, 0] - y, places[:, 1] - x) * CELL_M
        inside = (metres >= scenes.least_way_m) & (metres <= scenes.most_way_m)
        fit = places[inside & (metres >= scenes.least_ratio * straight)]
        if len(fit) < scenes.starts:
            continue
        starts = []
        for sy, sx in fit[rng.choice(len(fit), scenes.starts, replace=False)]:
            way = shortest_path(free, field, int(sx), int(sy))
            starts.append(((int(sx), int(sy)), int(rng.integers(HEADINGS)), way))
        return field, (int(x), int(y)), starts
    return None


def _middle(cell: tuple[int, int]) -> tuple[int, int]:
    return cell[0] * CELL_UNITS + CELL_UNITS // 2, cell[1] * CELL_UNITS + CELL_UNITS // 2
