"""The world of all rows: episodes, the camera, the rules' numbers, and the tables that the kernels look up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from powerband.envs.arrays import device_array

from .distance import RADIUS_M
from .episodes import HEADINGS, UNIT_M, Episodes
from .surfaces import CEILING_M, CELL_M, colours, heights

NUM_ACTIONS = 4
STOP, FORWARD, LEFT, RIGHT = range(NUM_ACTIONS)
CAMERA_M = 0.88
FIELD_OF_VIEW = math.radians(79)
NEAR_M, FAR_M = 0.5, 5.0
"""Range of the depth sensor."""
SUBSTEP_M = 0.025
"""A move is checked for collisions every so often."""
RADIUS = round(RADIUS_M / UNIT_M)
DIMMING = 0.08
"""Light falls as 1 / (1 + DIMMING z) unless told otherwise."""


class WorldArrays(NamedTuple):
    """`Rules`, `Camera` and `Episodes` as the kernels read them.

    The first are those of `Episodes`. `height` (32,) float32 metres and `colour` (33, 3) float32 by code. `step`
    (36, 2) int64: a substep of 25 mm by heading. `ray` (36, S, 2) float64: cells that the ray of a column advances for
    each metre of depth. `row_z`, `row_light` (S,) float64: depth and light of the floor below the horizon, of the
    ceiling above. `order` (E',) int64: the episodes that are walked. The rest are numbers.
    """

    cells: Any
    field: Any
    cells_at: Any
    field_at: Any
    size: Any
    plan: Any
    goal: Any
    start: Any
    target: Any
    length: Any
    way: Any
    left: Any
    way_at: Any
    height: Any
    colour: Any
    step: Any
    ray: Any
    row_z: Any
    row_light: Any
    pixels: int
    focal: float
    substeps: int
    radius_m: float
    max_steps: int
    bonus: float
    in_turns: bool
    dimming: float
    order: Any


@dataclass(frozen=True)
class Rules:
    """What an episode is scored by.

    Raises:
        ValueError: A number out of range.
    """

    success_m: float = 1.0
    """STOP succeeds where the way to the goal is at most so long."""
    forward_m: float = 0.25
    """Length of FORWARD; the guide's PPO moves 1.0."""
    max_steps: int = 500
    """An episode is cut after so many actions."""
    expert_bonus: float = 0.0
    """Reward for doing what the shortest-path follower would do; 0.1 in the guide."""

    def __post_init__(self) -> None:
        if not 0.1 <= self.success_m <= 5:
            raise ValueError(f"success_m={self.success_m:g}: give 0.1 to 5 m.")
        steps = self.forward_m / SUBSTEP_M
        if not 0 < self.forward_m <= 2 or abs(steps - round(steps)) > 1e-6:
            raise ValueError(f"forward_m={self.forward_m:g}: give a multiple of {SUBSTEP_M:g} m up to 2 m.")
        if not 1 <= self.max_steps <= 100_000:
            raise ValueError(f"max_steps={self.max_steps}: give 1 to 100000.")
        if not 0 <= self.expert_bonus <= 10:
            raise ValueError(f"expert_bonus={self.expert_bonus:g}: give 0 to 10.")


def focal_of(pixels: int) -> float:
    """Focal length in pixels."""
    return pixels / 2 / math.tan(FIELD_OF_VIEW / 2)


def world_arrays(
    episodes: Episodes,
    rules: Rules,
    pixels: int,
    in_turns: bool,
    device: torch.device,
    order: Tensor | None = None,
    dimming: float = DIMMING,
) -> WorldArrays:
    """The tables on `device`, where `episodes` must be.

    Args:
        episodes: What is drawn from.
        rules: Numbers of the rules.
        pixels: S, width and height of the camera's picture.
        in_turns: Rows take the episodes one after the other; else each draws its own.
        device: Of the kernels.
        order: (E',) int64 numbers of the episodes that are walked; None is all.
        dimming: Light falls as 1 / (1 + dimming z).
    """

    def put(values: np.ndarray) -> Any:
        return device_array(torch.from_numpy(np.ascontiguousarray(values)).to(device))

    order = torch.arange(len(episodes)) if order is None else order
    angle = 2 * np.pi * np.arange(HEADINGS) / HEADINGS
    ahead, aside = np.stack([np.cos(angle), np.sin(angle)], 1), np.stack([-np.sin(angle), np.cos(angle)], 1)
    focal = focal_of(pixels)
    across = (np.arange(pixels) + 0.5 - pixels / 2) / focal
    ray = (ahead[:, None] + across[None, :, None] * aside[:, None]) / CELL_M
    below = np.where(across > 0, CAMERA_M, CAMERA_M - CEILING_M)
    row_z = below / np.where(across == 0, 1e-9, across)
    names = [name for name in WorldArrays._fields if name in Episodes.__dataclass_fields__]
    return WorldArrays(
        **{name: device_array(getattr(episodes, name)) for name in names},
        height=put(heights()),
        colour=put(colours()),
        step=put(np.round(ahead * SUBSTEP_M / UNIT_M).astype(np.int64)),
        ray=put(ray),
        row_z=put(row_z),
        row_light=put(1 / (1 + dimming * row_z)),
        pixels=pixels,
        focal=focal,
        substeps=round(rules.forward_m / SUBSTEP_M),
        radius_m=float(rules.success_m),
        max_steps=rules.max_steps,
        bonus=float(rules.expert_bonus),
        in_turns=in_turns,
        dimming=float(dimming),
        order=device_array(order.to(device)),
    )
