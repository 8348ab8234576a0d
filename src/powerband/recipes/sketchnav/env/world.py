"""World: builds the arrays that all agents share for the kernels: episodes, camera, rules and lookup tables."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from powerband.envs.numba.arrays import device_array
from powerband.recipes.sketchnav.plans.cell_codes import CEILING_M, CELL_M, colours, heights
from powerband.recipes.sketchnav.plans.distance import RADIUS_M
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, HEADINGS, Episodes
from powerband.recipes.sketchnav.settings import DEFAULT_SHADING, SUBSTEP_M, Rules

NUM_ACTIONS = 4
STOP, FORWARD, LEFT, RIGHT = range(NUM_ACTIONS)
CAMERA_M = 0.88
"""Height of the camera in metres."""
FIELD_OF_VIEW = math.radians(79)
NEAR_M, FAR_M = 0.5, 5.0
"""Range of the depth sensor in metres."""
RADIUS = round(RADIUS_M / COORDINATE_UNIT_M)
"""Radius of an agent in units of its coordinates."""


class WorldArrays(NamedTuple):
    """Floor plans, episodes, rules and lookup tables, which the kernels of all agents read.

    The first fields, up to ``way_at``, are those of `Episodes`. An image has S x S pixels. The first axis of ``step``
    and ``ray`` is the heading in tens of degrees.

    Attributes:
        height: Heights (32,) float32 in metres, by the code of a cell, which says what it contains.
        colour: Colours (33, 3) float32 in 0..255, by the code of a cell; the last row is the ceiling.
        step: Displacement (36, 2) int64 of a substep of 25 mm, in units of 1/64 mm.
        ray: Cells (36, S, 2) float64 that the ray of each image column advances per metre of depth.
        row_z: Depth (S,) float64, in metres, of the floor below the horizon and of the ceiling above it, by image row.
        row_light: Light (S,) float64 at that depth, as a factor on colours.
        pixels: S, side of the camera image.
        focal: Focal length in pixels.
        substeps: Substeps of the action FORWARD.
        radius_m: Largest path length to the goal at which STOP succeeds, in metres.
        max_steps: Actions after which an episode is truncated.
        bonus: Additional reward for the action that follows the shortest path.
        sequential: True if agents play the episodes in order, False if they draw episodes.
        shading: Light falls as 1 / (1 + shading z) with a depth of z metres.
        order: Numbers (E',) int64 of the E' episodes that are played, in the order in which agents play them.
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
    sequential: bool
    shading: float
    order: Any


def focal_length_px(pixels: int) -> float:
    """Computes the focal length, in pixels, of a camera image of `pixels` x `pixels`."""
    return pixels / 2 / math.tan(FIELD_OF_VIEW / 2)


def world_arrays(
    episodes: Episodes,
    rules: Rules,
    pixels: int,
    sequential: bool,
    device: torch.device,
    order: Tensor | None = None,
    shading: float = DEFAULT_SHADING,
) -> WorldArrays:
    """Builds the arrays and numbers that the kernels of all agents read.

    Args:
        episodes: Episodes on `device`.
        rules: Rules of an episode.
        pixels: S, side of the camera image.
        sequential: Agents play the episodes in order; otherwise each agent draws episodes at random.
        device: Device of the kernels.
        order: Numbers (E',) int64 of the E' episodes that are played; None plays all.
        shading: Light falls as 1 / (1 + shading z), with a depth of z metres.
    """

    def put(values: np.ndarray) -> Any:
        return device_array(torch.from_numpy(np.ascontiguousarray(values)).to(device))

    order = torch.arange(len(episodes)) if order is None else order
    angle = 2 * np.pi * np.arange(HEADINGS) / HEADINGS
    ahead, aside = np.stack([np.cos(angle), np.sin(angle)], 1), np.stack([-np.sin(angle), np.cos(angle)], 1)
    focal = focal_length_px(pixels)
    across = (np.arange(pixels) + 0.5 - pixels / 2) / focal
    ray = (ahead[:, None] + across[None, :, None] * aside[:, None]) / CELL_M
    below = np.where(across > 0, CAMERA_M, CAMERA_M - CEILING_M)
    row_z = below / np.where(across == 0, 1e-9, across)
    names = [name for name in WorldArrays._fields if name in Episodes.__dataclass_fields__]
    return WorldArrays(
        **{name: device_array(getattr(episodes, name)) for name in names},
        height=put(heights()),
        colour=put(colours()),
        step=put(np.round(ahead * SUBSTEP_M / COORDINATE_UNIT_M).astype(np.int64)),
        ray=put(ray),
        row_z=put(row_z),
        row_light=put(1 / (1 + shading * row_z)),
        pixels=pixels,
        focal=focal,
        substeps=round(rules.forward_m / SUBSTEP_M),
        radius_m=float(rules.success_m),
        max_steps=rules.max_steps,
        bonus=float(rules.expert_bonus),
        sequential=sequential,
        shading=float(shading),
        order=device_array(order.to(device)),
    )
