"""What of a sketch lies around an agent: the page is moved and turned by where the agent should be on it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

START_RGB, GOAL_RGB = (30, 80, 230), (150, 40, 190)
"""Colours of the dots where an agent starts and where it has to go, as users are asked to draw them."""
UNLIKE = 70
"""A pixel whose colour is off by so much in one channel is no part of a dot; greys are off by 75 or more."""
AT_ONCE = 512


def unit(picture: Tensor) -> Tensor:
    """Bytes as floats in 0..1."""
    return picture.float().mul_(1 / 255)


def dots(sketches: Tensor, rgb: tuple[int, int, int]) -> Tensor:
    """(E, 2) float32: where on its page, x and y in 0..1, a sketch's dot is; the middle where there is none.

    Args:
        sketches: (E, 3, s, s) uint8.
        rgb: Colour of the dot.
    """
    side = sketches.shape[-1]
    middle = (torch.arange(side, device=sketches.device) + 0.5) / side
    colour = torch.tensor(rgb, device=sketches.device).view(3, 1, 1)
    found = []
    for pages in sketches.split(AT_ONCE):
        weight = (1 - (pages.int() - colour).abs().amax(1) / UNLIKE).clamp(min=0)  # (e, s, s)
        total = weight.sum((1, 2))
        at = torch.stack([(weight.sum(1) * middle).sum(1), (weight.sum(2) * middle).sum(1)], 1)
        found.append(torch.where(total[:, None] > 0, at / total[:, None].clamp(min=1e-6), 0.5))
    return torch.cat(found)


class Surroundings(nn.Module):
    """A part of the page around an agent, its heading up. How large the page is, is learned from its code.

    Source: Jaderberg et al. 2015, section 3.3 (bilinear sampling, whose gradient reaches the size).
    """

    def __init__(self, code: int, page_m: float, around_m: float, pixels: int, learned: bool = True) -> None:
        """
        Args:
            code: Width of a page's code.
            page_m: Metres along a page before anything is learned.
            around_m: Metres along the part that is seen.
            pixels: V, along that part.
            learned: The size of the page is; else it stays page_m.
        """
        super().__init__()
        self.larger = None
        if learned:
            self.larger = nn.Linear(code, 1)
            nn.init.zeros_(self.larger.weight)
            nn.init.zeros_(self.larger.bias)
        self.page_m, self.around_m, self.pixels = page_m, around_m, pixels

    def forward(
        self, ink: Tensor, where: Tensor, starts: Tensor, codes: Tensor, gps: Tensor, compass: Tensor
    ) -> Tensor:
        """
        Args:
            ink: (U, 3, s, s) float32, 0 where a page is white. where: (R,) int64: the page of each row.
            starts: (R, 2) of `dots`.
            codes: (R, code) of the pages.
            gps: (R, 2) metres from the start, right and down on the page.
            compass: (R, 1) heading in radians, clockwise from the right.

        Returns:
            (R, 3, V, V) float32, 0 where the page is white or ends.
        """
        size = self.size_m(codes)
        with torch.autocast(ink.device.type, enabled=False):  # of a product in bfloat16 places would be rows off
            return self._cut(ink, where, starts, size, gps, compass)

    def _cut(self, ink: Tensor, where: Tensor, starts: Tensor, size: Tensor, gps: Tensor, compass: Tensor) -> Tensor:
        """`forward` with the size (R, 1) of the pages in metres."""
        rows, pages = len(where), len(ink)
        ahead = torch.cat([compass.cos(), compass.sin()], 1)
        right = torch.stack([-ahead[:, 1], ahead[:, 0]], 1)
        share = self.around_m / size
        middle = 2 * (starts + gps / size) - 1
        to_x = torch.stack([share[:, 0] * right[:, 0], -share[:, 0] * ahead[:, 0], middle[:, 0]], 1)
        to_y = torch.stack([share[:, 0] * right[:, 1], -share[:, 0] * ahead[:, 1], middle[:, 1]], 1)
        # The pages lie below each other in one picture, a white row above and below each: no copy for each row.
        side, high = ink.shape[-1], ink.shape[-1] + 2
        centre = (2 * high * where + high) / (pages * high) - 1
        to_y = to_y * (side / (pages * high)) + F.pad(centre.unsqueeze(1), (2, 0))
        grid = F.affine_grid(torch.stack([to_x, to_y], 1), [rows, 1, self.pixels, self.pixels], align_corners=False)
        with torch.no_grad():
            outside = (grid[..., 1] - centre.view(-1, 1, 1)).abs() > (side + 1) / (pages * high)
        grid = grid.masked_fill(outside.unsqueeze(-1), 2.0)
        atlas = F.pad(ink, (0, 0, 1, 1)).transpose(0, 1).flatten(1, 2).unsqueeze(0)
        seen = F.grid_sample(atlas, grid.flatten(0, 1).unsqueeze(0), align_corners=False)
        return seen[0].view(3, rows, self.pixels, self.pixels).transpose(0, 1)

    def size_m(self, codes: Tensor) -> Tensor:
        """(R, 1) float32: metres along the pages with `codes` (R, code), as far as is known."""
        if self.larger is None:
            return codes.new_full((len(codes), 1), self.page_m, dtype=torch.float32)
        return self.page_m * self.larger(codes).float().exp()
