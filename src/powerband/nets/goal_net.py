"""Where the goal is, from a map of what was explored and a sketch: keypoints of one attend to those of the other.

Suffixes: R rows, K keypoints, D directions, L steps of a ray, F features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SIDE = 5
KEYPOINTS = SIDE * SIDE
DIRECTIONS = 8
REACH_M, STEPS = 4.0, 16
"""A ray looks so far, in so many steps."""
WIDTH, HEADS, FEED_FORWARD = 128, 4, 512
SCALE_M = 10.0
POLAR = 3
"""Numbers of `polar_of`."""
DARK = 0.6
"""Walls have more ink than this in every channel."""


def box_of(inside: Tensor) -> tuple[Tensor, Tensor]:
    """(R, 2) lowest and highest column and row (+ 1) of squares (R, G, G) bool; the whole where there is none."""
    side = inside.shape[-1]
    index = torch.arange(side, device=inside.device)
    low, high = [], []
    for axis in (1, 2):  # columns, then rows
        there = inside.any(axis)
        some = there.any(1)
        first = torch.where(there, index, side).amin(1)
        last = torch.where(there, index, -1).amax(1) + 1
        low.append(torch.where(some, first, 0))
        high.append(torch.where(some, last, side))
    return torch.stack(low, 1).float(), torch.stack(high, 1).float()


def keypoints_of(low: Tensor, high: Tensor) -> Tensor:
    """(R, K, 2): the middles of SIDE by SIDE parts of boxes (R, 2) to (R, 2), row by row."""
    share = (torch.arange(SIDE, device=low.device) + 0.5) / SIDE
    x = low[:, :1] + (high - low)[:, :1] * share
    y = low[:, 1:] + (high - low)[:, 1:] * share
    return torch.stack([x.unsqueeze(1).expand(-1, SIDE, -1), y.unsqueeze(2).expand(-1, -1, SIDE)], -1).flatten(1, 2)


def rays_of(stands: Tensor, points: Tensor, squares_a_metre: Tensor) -> Tensor:
    """(R, K, D) in 0..1: how far it is to what stands, over REACH_M.

    Args:
        stands: (R, G, G) bool.
        points: (R, K, 2) columns and rows.
        squares_a_metre: (R, 1).
    """
    side = stands.shape[-1]
    angle = torch.arange(DIRECTIONS, device=points.device) * (2 * math.pi / DIRECTIONS)
    step = (torch.arange(STEPS, device=points.device) + 1) * (REACH_M / STEPS)
    reach = step.view(1, 1, 1, -1) * squares_a_metre.view(-1, 1, 1, 1)
    at = [
        points[..., axis, None, None] + turned[:, None] * reach for axis, turned in ((0, angle.cos()), (1, angle.sin()))
    ]
    column, row = (each.floor().long().clamp(0, side - 1) for each in at)
    hit = stands.flatten(1).gather(1, (row * side + column).flatten(1)).view(row.shape)
    first = torch.where(hit, torch.arange(STEPS, device=hit.device), STEPS).amin(-1)
    return first.float() / STEPS


class GoalNet(nn.Module):
    """Keypoints of the explored map, each weighed by how like the goal's place on the sketch it is."""

    def __init__(self) -> None:
        super().__init__()
        self.explored_in, self.sketch_in = nn.Linear(DIRECTIONS + 2, WIDTH), nn.Linear(DIRECTIONS + 4, WIDTH)
        layer = (WIDTH, HEADS, FEED_FORWARD, 0.0)
        self.explored = nn.TransformerEncoderLayer(*layer, batch_first=True)
        self.sketch = nn.TransformerEncoderLayer(*layer, batch_first=True)
        self.across = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.weigh = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(
        self,
        explored: Tensor,
        square_m: float,
        ink: Tensor,
        where: Tensor,
        starts: Tensor,
        goals: Tensor,
        page_m: Tensor,
    ) -> Tensor:
        """
        Args:
            explored: (R, 1, G, G) uint8: 0 not seen, 127 free, 255 standing; the start in the middle.
            square_m: Metres along a square of it.
            ink: (U, 3, s, s) float32, 0 where a page is white. where: (R,) int64: the page of each row.
            starts, goals: (R, 2) in 0..1, their dots. page_m: (R, 1) metres along a page.

        Returns:
            (R, 2) metres from the start: where the goal is taken to be, within the box of what is free.
        """
        maps, side = explored[:, 0], explored.shape[-1]
        points = keypoints_of(*box_of(maps == 127))
        metres = (points - side / 2) * square_m
        rays = rays_of(maps == 255, points, torch.full_like(page_m, 1 / square_m))
        query = self.explored(self.explored_in(torch.cat([rays, metres / SCALE_M], -1)))
        walls, length = (ink > DARK).all(1), ink.shape[-1]
        places = keypoints_of(*box_of(walls)).index_select(0, where)
        from_dots = [(places / length - dot.unsqueeze(1)) * page_m.unsqueeze(1) / SCALE_M for dot in (starts, goals)]
        drawn = torch.cat([rays_of(walls.index_select(0, where), places, length / page_m), *from_dots], -1)
        memory = self.sketch(self.sketch_in(drawn))
        told, _ = self.across(query, memory, memory, need_weights=False)
        weight = self.weigh(query + told).float().softmax(1)
        return (weight * metres).sum(1)


def polar_of(goal: Tensor, gps: Tensor, compass: Tensor) -> Tensor:
    """(R, 3): distance in tens of metres, sine and cosine of the bearing, of goals (R, 2) seen from (R, 2)."""
    off = goal - gps
    bearing = torch.atan2(off[:, 1:], off[:, :1]) - compass
    return torch.cat([off.norm(dim=1, keepdim=True) / SCALE_M, bearing.sin(), bearing.cos()], 1)
