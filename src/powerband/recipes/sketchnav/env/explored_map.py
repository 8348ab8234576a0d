"""ExploredMap: bird's-eye maps of free, occupied and unseen squares, from the depth that agents see at eye level."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.recipes.sketchnav.env.world import FAR_M, NEAR_M, focal_length_px
from powerband.recipes.sketchnav.settings import MAP_SQUARE_M

UNSEEN, FREE, OCCUPIED = 0, 127, 255
"""Values of a square. A larger value replaces a smaller one."""
SAMPLES_M = 0.2
"""Distance between the points of a ray that are marked as free, in metres."""


class ExploredMap:
    """Bird's-eye maps of what N agents have seen, each with the agent's start in the centre and the axes of the plan.

    Args:
        rows: N, number of agents.
        squares: G, squares along one side of a map; a square is 0.25 m wide.
        pixels: S, side of the camera image.
        device: Device of maps and images.

    Attributes:
        maps: Maps (N, G, G) uint8: 0 is unseen, 127 is free, 255 is occupied.
    """

    def __init__(self, rows: int, squares: int, pixels: int, device: torch.device) -> None:
        self.maps = torch.full((rows, squares, squares), UNSEEN, dtype=torch.uint8, device=device)
        focal = focal_length_px(pixels)
        self.across = (torch.arange(pixels, device=device) + 0.5 - pixels / 2) / focal
        self.along = torch.arange(SAMPLES_M, FAR_M, SAMPLES_M, device=device)

    def add(self, depth: Tensor, gps: Tensor, compass: Tensor, starts: Tensor) -> Tensor:
        """Adds the present camera images to the maps and returns the maps (N, G, G).

        Args:
            depth: Observed depth (N, 1, S, S) uint8, 0 at 0.5 m or nearer and 255 at 5 m or farther.
            gps: Positions (N, 2) in metres from the start.
            compass: Headings (N, 1) in radians.
            starts: (N,) bool: True for agents that begin an episode; their maps are cleared first.
        """
        self.maps.masked_fill_(starts.view(-1, 1, 1), UNSEEN)
        return self.maps.copy_(self.with_view(self.maps, depth, gps, compass))

    def with_view(self, maps: Tensor, depth: Tensor, gps: Tensor, compass: Tensor) -> Tensor:
        """Returns copies of maps with camera images added. Free squares never replace occupied squares.

        Args:
            maps: Maps (N, G, G) uint8 of N agents.
            depth: Observed depth (N, 1, S, S) uint8, as in `add`.
            gps: Positions (N, 2) in metres from the start.
            compass: Headings (N, 1) in radians.
        """
        level = depth[:, 0, depth.shape[-1] // 2 - 1]  # the row above the horizon
        far = NEAR_M + level.float() * ((FAR_M - NEAR_M) / 255)
        free = torch.where(self.along < far.unsqueeze(2), FREE, UNSEEN).to(torch.uint8)  # (n, S, K)
        marked = self._mark(maps, free, self.along.expand(*far.shape, -1), gps, compass)
        walls = torch.where((level > 0) & (level < 255), OCCUPIED, UNSEEN).to(torch.uint8).unsqueeze(2)
        return self._mark(marked, walls, far.unsqueeze(2), gps, compass)

    def _mark(self, maps: Tensor, value: Tensor, z: Tensor, gps: Tensor, compass: Tensor) -> Tensor:
        """Returns copies of maps in which k points on the ray of each of S image columns are marked.

        A square gets the maximum of its value in `maps` and the values of the points in it.

        Args:
            maps: Maps (N, G, G) uint8 of N agents.
            value: Values (N, S, k) uint8 of the points.
            z: Depth (N, S, k) of the points in metres.
            gps: Positions (N, 2) in metres from the start.
            compass: Headings (N, 1) in radians.
        """
        side, across = maps.shape[-1], z * self.across.view(1, -1, 1)
        cos, sin = compass.cos().unsqueeze(2), compass.sin().unsqueeze(2)
        x = gps[:, 0].view(-1, 1, 1) + z * cos - across * sin
        y = gps[:, 1].view(-1, 1, 1) + z * sin + across * cos
        column, row = ((at / MAP_SQUARE_M).floor().long() + side // 2 for at in (x, y))
        inside = (column >= 0) & (column < side) & (row >= 0) & (row < side)
        square = (row.clamp(0, side - 1) * side + column.clamp(0, side - 1)).flatten(1)
        flat = maps.flatten(1).scatter_reduce(1, square, (value * inside).flatten(1), "amax")
        return flat.view_as(maps)
