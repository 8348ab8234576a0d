"""What agents have seen so far, as maps from above: free, standing, or not seen. Made of the depth at eye level."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.nets.sketch_net import SQUARE_M

from .world import FAR_M, NEAR_M, focal_of

UNSEEN, FREE, STANDS = 0, 127, 255
SAMPLES_M = 0.2
"""A ray is free at points so far apart."""


class Explored:
    """Maps of N agents, each with its start in the middle and the axes of the plan.

    Args:
        rows: N.
        squares: G, along a map.
        pixels: S, of the camera's picture.
        device: Of maps and pictures.

    Attributes:
        maps: (N, G, G) uint8.
    """

    def __init__(self, rows: int, squares: int, pixels: int, device: torch.device) -> None:
        self.maps = torch.full((rows, squares, squares), UNSEEN, dtype=torch.uint8, device=device)
        focal = focal_of(pixels)
        self.across = (torch.arange(pixels, device=device) + 0.5 - pixels / 2) / focal
        self.along = torch.arange(SAMPLES_M, FAR_M, SAMPLES_M, device=device)

    def add(self, depth: Tensor, gps: Tensor, compass: Tensor, new: Tensor) -> Tensor:
        """Takes in what is seen now.

        Args:
            depth: (N, 1, S, S) uint8, as observed.
            gps: (N, 2) metres from the start. compass: (N, 1) radians.
            new: (N,) bool: agents that begin an episode, whose map begins empty.

        Returns:
            `maps`.
        """
        self.maps.masked_fill_(new.view(-1, 1, 1), UNSEEN)
        return self.maps.copy_(self.with_view(self.maps, depth, gps, compass))

    def with_view(self, maps: Tensor, depth: Tensor, gps: Tensor, compass: Tensor) -> Tensor:
        """Maps (n, G, G) with what is seen from there added; free squares never replace standing ones."""
        level = depth[:, 0, depth.shape[-1] // 2 - 1]  # the row above the horizon
        far = NEAR_M + level.float() * ((FAR_M - NEAR_M) / 255)
        seen = torch.where(self.along < far.unsqueeze(2), FREE, UNSEEN).to(torch.uint8)  # (n, S, K)
        found = self._marked(maps, seen, self.along.expand(*far.shape, -1), gps, compass)
        walls = torch.where((level > 0) & (level < 255), STANDS, UNSEEN).to(torch.uint8).unsqueeze(2)
        return self._marked(found, walls, far.unsqueeze(2), gps, compass)

    def _marked(self, maps: Tensor, value: Tensor, z: Tensor, gps: Tensor, compass: Tensor) -> Tensor:
        """The larger of a square's value and those of the points (n, S, k) at depth z that lie in it."""
        side, across = maps.shape[-1], z * self.across.view(1, -1, 1)
        cos, sin = compass.cos().unsqueeze(2), compass.sin().unsqueeze(2)
        x = gps[:, 0].view(-1, 1, 1) + z * cos - across * sin
        y = gps[:, 1].view(-1, 1, 1) + z * sin + across * cos
        column, row = ((at / SQUARE_M).floor().long() + side // 2 for at in (x, y))
        inside = (column >= 0) & (column < side) & (row >= 0) & (row < side)
        where = (row.clamp(0, side - 1) * side + column.clamp(0, side - 1)).flatten(1)
        flat = maps.flatten(1).scatter_reduce(1, where, (value * inside).flatten(1), "amax")
        return flat.view_as(maps)
