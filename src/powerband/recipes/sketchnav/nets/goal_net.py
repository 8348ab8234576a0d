"""GoalNet: predicts the position of the goal; keypoints of the explored map attend to those of the sketch.

Shapes: R rows (agents), U distinct pages, G squares along an explored map, s pixels along a page, K keypoints,
D directions of rays.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SIDE = 5
KEYPOINTS = SIDE * SIDE
"""Number of keypoints of a map, which form a grid of SIDE by SIDE points."""
DIRECTIONS = 8
REACH_M, STEPS = 4.0, 16
"""Length of a ray in metres, and number of its steps."""
WIDTH, HEADS, FEED_FORWARD = 128, 4, 512
"""Sizes of the transformer layers."""
SCALE_M = 10.0
"""Unit of distances as features, in metres."""
POLAR = 3
"""How many numbers `polar_features` returns per row."""
DARK = 0.3
"""A pixel belongs to a wall if its ink is above this value in every channel. Strokes are thinner than a pixel of a
small sketch, so a wall rarely fills one."""


def bounding_box(inside: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the bounding box of the True squares of each map.

    Args:
        inside: R maps (R, G, G) bool with G squares along a side.

    Returns:
        (low, high): lowest (column, row) and highest (column, row) + 1, (R, 2) float32 each. Without True squares, the
        box is the whole map.
    """
    side = inside.shape[-1]
    index = torch.arange(side, device=inside.device)
    low, high = [], []
    for axis in (1, 2):  # columns, then rows
        occupied = inside.any(axis)
        not_empty = occupied.any(1)
        first = torch.where(occupied, index, side).amin(1)
        last = torch.where(occupied, index, -1).amax(1) + 1
        low.append(torch.where(not_empty, first, 0))
        high.append(torch.where(not_empty, last, side))
    return torch.stack(low, 1).float(), torch.stack(high, 1).float()


def keypoint_grid(low: Tensor, high: Tensor) -> Tensor:
    """Returns the keypoints of R boxes: the centres of 5 by 5 equal parts of each box.

    Args:
        low: Lowest (column, row) of the boxes (R, 2).
        high: Highest (column, row) of the boxes (R, 2), exclusive.

    Returns:
        K = 25 keypoints (column, row) per box, (R, K, 2).
    """
    share = (torch.arange(SIDE, device=low.device) + 0.5) / SIDE
    x = low[:, :1] + (high - low)[:, :1] * share
    y = low[:, 1:] + (high - low)[:, 1:] * share
    return torch.stack([x.unsqueeze(1).expand(-1, SIDE, -1), y.unsqueeze(2).expand(-1, -1, SIDE)], -1).flatten(1, 2)


def ray_distances(occupied: Tensor, points: Tensor, squares_per_metre: Tensor) -> Tensor:
    """Computes the distances from K points to the nearest occupied squares in D = 8 directions.

    Args:
        occupied: Occupied squares (R, G, G) bool of R maps with G squares along a side.
        points: Column and row of the points (R, K, 2).
        squares_per_metre: Resolution of the maps (R, 1).

    Returns:
        Distances (R, K, D) float32 as fractions of 4 m, in steps of 1/16; 1 if no square within 4 m is occupied.
    """
    side = occupied.shape[-1]
    angle = torch.arange(DIRECTIONS, device=points.device) * (2 * math.pi / DIRECTIONS)
    step = (torch.arange(STEPS, device=points.device) + 1) * (REACH_M / STEPS)
    reach = step.view(1, 1, 1, -1) * squares_per_metre.view(-1, 1, 1, 1)
    at = [
        points[..., axis, None, None] + direction[:, None] * reach
        for axis, direction in ((0, angle.cos()), (1, angle.sin()))
    ]
    column, row = (each.floor().long().clamp(0, side - 1) for each in at)
    hit = occupied.flatten(1).gather(1, (row * side + column).flatten(1)).view(row.shape)
    first = torch.where(hit, torch.arange(STEPS, device=hit.device), STEPS).amin(-1)
    return first.float() / STEPS


class GoalNet(nn.Module):
    """Predicts the position of the goal as a weighted mean of keypoints of the explored map.

    Keypoints are the points of a grid of 5 x 5 over a map. Those of the explored map attend to those of the sketch,
    which gives their weights.
    """

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
        page: Tensor,
        starts: Tensor,
        goals: Tensor,
        frame: Tensor,
    ) -> Tensor:
        """Predicts the position of the goal of each of R agents (rows).

        Args:
            explored: Explored maps (R, 1, G, G) uint8 of G x G squares: 0 unseen, 127 free, 255 occupied. The start is
                in the centre.
            square_m: Side of a square of the map in metres.
            ink: U distinct pages (sketch images) of s x s pixels, (U, 3, s, s) float32, 0 where a page is white.
            page: Index (R,) int64 of the page of each row.
            starts: Start dots (R, 2) on the pages, in 0..1.
            goals: Goal dots (R, 2) on the pages, in 0..1.
            frame: Frames (R, 2, 2) of the pages: matrices from offsets on a page to metres.

        Returns:
            Predicted positions (R, 2) in metres from the start, within the bounding box of the free squares.
        """
        maps, side = explored[:, 0], explored.shape[-1]
        points = keypoint_grid(*bounding_box(maps == 127))
        metres = (points - side / 2) * square_m
        page_m = torch.linalg.det(frame).sqrt().unsqueeze(1)
        rays = ray_distances(maps == 255, points, torch.full_like(page_m, 1 / square_m))
        query = self.explored(self.explored_in(torch.cat([rays, metres / SCALE_M], -1)))
        walls, length = (ink > DARK).all(1), ink.shape[-1]
        places = keypoint_grid(*bounding_box(walls)).index_select(0, page)
        from_dots = [(places / length - dot.unsqueeze(1)) @ frame.mT / SCALE_M for dot in (starts, goals)]
        drawn = torch.cat([ray_distances(walls.index_select(0, page), places, length / page_m), *from_dots], -1)
        memory = self.sketch(self.sketch_in(drawn))
        attended, _ = self.across(query, memory, memory, need_weights=False)
        weight = self.weigh(query + attended).float().softmax(1)
        return (weight * metres).sum(1)


def polar_features(goal: Tensor, gps: Tensor, compass: Tensor) -> Tensor:
    """Computes features of the goals of R agents: their distance and direction from the agents.

    Args:
        goal: Positions of the goals (R, 2) in metres.
        gps: Positions of the agents (R, 2) in metres.
        compass: Headings of the agents (R, 1) in radians.

    Returns:
        Features (R, 3): the distance in tens of metres, and the sine and cosine of the bearing relative to the heading.
    """
    offset = goal - gps
    bearing = torch.atan2(offset[:, 1:], offset[:, :1]) - compass
    return torch.cat([offset.norm(dim=1, keepdim=True) / SCALE_M, bearing.sin(), bearing.cos()], 1)
