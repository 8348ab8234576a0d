"""SketchCrop: crops a sketch around the estimated position of an agent, with the agent's heading up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

COLOUR_TOLERANCE = 70
"""Difference in one channel from which a pixel does not belong to a dot; greys differ by 75 or more."""
CHUNK = 512
"""Sketches that are searched for dots at a time, which limits the memory."""


def to_unit_range(image: Tensor) -> Tensor:
    """Converts an image of bytes (0..255) to float32 in 0..1."""
    return image.float().mul_(1 / 255)


def find_dots(sketches: Tensor, rgb: tuple[int, int, int]) -> Tensor:
    """Finds the position of a dot, such as the start, on each of E sketches.

    Args:
        sketches: Sketches (E, 3, s, s) uint8 of s x s pixels.
        rgb: Colour of the dot.

    Returns:
        Positions (E, 2) float32, x and y in 0..1; the centre of a sketch that has no dot.
    """
    side = sketches.shape[-1]
    centre = (torch.arange(side, device=sketches.device) + 0.5) / side
    colour = torch.tensor(rgb, device=sketches.device).view(3, 1, 1)
    positions = []
    for pages in sketches.split(CHUNK):
        weight = (1 - (pages.int() - colour).abs().amax(1) / COLOUR_TOLERANCE).clamp(min=0)  # (e, s, s)
        total = weight.sum((1, 2))
        at = torch.stack([(weight.sum(1) * centre).sum(1), (weight.sum(2) * centre).sum(1)], 1)
        positions.append(torch.where(total[:, None] > 0, at / total[:, None].clamp(min=1e-6), 0.5))
    return torch.cat(positions)


class SketchCrop(nn.Module):
    """Crops the page (sketch image) around an agent, with the agent's heading up.

    A linear layer learns the size of the page in metres from the code of the page, which is its features.

    Source: Jaderberg et al. 2015, section 3.3 (bilinear sampling; its gradient reaches the size of the page).
    """

    def __init__(self, code: int, page_m: float, crop_m: float, pixels: int, learned: bool = True) -> None:
        """
        Args:
            code: Number of features in the code of a page.
            page_m: Initial estimate of the side of the area that a page shows, in metres.
            crop_m: Side of the crop in metres.
            pixels: V, side of the crop in pixels.
            learned: Learn the size of the page; otherwise the size stays `page_m`.
        """
        super().__init__()
        self.larger: nn.Linear | None = None
        if learned:
            self.larger = nn.Linear(code, 1)
            nn.init.zeros_(self.larger.weight)
            nn.init.zeros_(self.larger.bias)
        self.page_m, self.crop_m, self.pixels = page_m, crop_m, pixels

    def forward(self, ink: Tensor, page: Tensor, starts: Tensor, codes: Tensor, gps: Tensor, compass: Tensor) -> Tensor:
        """Crops the page of each of R agents (rows).

        Args:
            ink: U distinct pages (U, 3, s, s) float32 of s x s pixels, 0 where a page is white.
            page: Index (R,) int64 of the page of each row.
            starts: Start dots (R, 2) from `find_dots`.
            codes: Codes of the pages (R, code).
            gps: Positions (R, 2) in metres from the start, right and down on the page.
            compass: Headings (R, 1) in radians, clockwise from the right.

        Returns:
            Crops (R, 3, V, V) float32, 0 where the page is white and outside of it.
        """
        size = self.page_size_m(codes)
        with torch.autocast(ink.device.type, enabled=False):  # bfloat16 would move the crops by whole rows
            return self._crop(ink, page, starts, size, gps, compass)

    def _crop(self, ink: Tensor, page: Tensor, starts: Tensor, size: Tensor, gps: Tensor, compass: Tensor) -> Tensor:
        """Crops the page of each of R agents (rows), as `forward`, from pages of known size.

        `size` (R, 1) is the size of the pages in metres; `forward` describes the other arguments and the result.
        """
        rows, pages = len(page), len(ink)
        ahead = torch.cat([compass.cos(), compass.sin()], 1)
        right = torch.stack([-ahead[:, 1], ahead[:, 0]], 1)
        share = self.crop_m / size
        middle = 2 * (starts + gps / size) - 1
        to_x = torch.stack([share[:, 0] * right[:, 0], -share[:, 0] * ahead[:, 0], middle[:, 0]], 1)
        to_y = torch.stack([share[:, 0] * right[:, 1], -share[:, 0] * ahead[:, 1], middle[:, 1]], 1)
        # All pages form one tall image with a white row above and below each page, so that no row needs its own copy.
        side, high = ink.shape[-1], ink.shape[-1] + 2
        centre = (2 * high * page + high) / (pages * high) - 1
        to_y = to_y * (side / (pages * high)) + F.pad(centre.unsqueeze(1), (2, 0))
        grid = F.affine_grid(torch.stack([to_x, to_y], 1), [rows, 1, self.pixels, self.pixels], align_corners=False)
        with torch.no_grad():
            outside = (grid[..., 1] - centre.view(-1, 1, 1)).abs() > (side + 1) / (pages * high)
        grid = grid.masked_fill(outside.unsqueeze(-1), 2.0)
        atlas = F.pad(ink, (0, 0, 1, 1)).transpose(0, 1).flatten(1, 2).unsqueeze(0)
        crops = F.grid_sample(atlas, grid.flatten(0, 1).unsqueeze(0), align_corners=False)
        return crops[0].view(3, rows, self.pixels, self.pixels).transpose(0, 1)

    def page_size_m(self, codes: Tensor) -> Tensor:
        """Estimates the sizes (R, 1) float32, in metres, of R pages with the features `codes` (R, code)."""
        if self.larger is None:
            return codes.new_full((len(codes), 1), self.page_m, dtype=torch.float32)
        return self.page_m * self.larger(codes).float().exp()
