"""SketchCrop: crops a sketch around the estimated position of an agent, with the agent's heading up.

The frame of a page is the matrix (2, 2) from offsets on the page, in units of its side, to offsets in metres. The frame
of an undistorted page is its size in metres times the unit matrix.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.recipes.sketchnav.plans.sketch import DOT_PX
from powerband.recipes.sketchnav.settings import PAGE_PX

Learned = Literal["nothing", "size", "frame"]
"""What `SketchCrop` learns about a page."""
MAX_DISTORTION = 0.45
"""Largest entry of a learned frame besides its size. The frame is invertible for any value below 0.7."""
MAX_LOG_SIZE = 3.0
"""Largest logarithm of the factor between a learned size and the initial one; it keeps frames finite."""
COLOUR_TOLERANCE = 70
"""Difference in one channel from which a pixel does not belong to a dot; greys differ by 75 or more."""
MIN_REACH_PX = 3
"""Smallest distance from the centre of a dot within which pixels may belong to it; larger sketches use two radii."""
PASSES = 3
"""Means around the last estimate of the centre. The centre of a dot of twice the usual size needs more than one."""
CHUNK = 512
"""Sketches that are searched for dots at a time, which limits the memory."""


def to_unit_range(image: Tensor) -> Tensor:
    """Converts an image of bytes (0..255) to float32 in 0..1."""
    return image.float().mul_(1 / 255)


def find_dots(sketches: Tensor, rgb: tuple[int, int, int]) -> Tensor:
    """Finds the position of a dot, such as the start, on each of E sketches.

    It is the mean position of the pixels in the colour of the dot, near the peak of this colour. Pixels far from the
    peak do not count. For example, the red path and the blue start dot mix to the purple of the goal where they meet.

    Args:
        sketches: Sketches (E, 3, s, s) uint8 of s x s pixels.
        rgb: Colour of the dot.

    Returns:
        Positions (E, 2) float32, x and y in 0..1; the centre of a sketch that has no dot.
    """
    side = sketches.shape[-1]
    centre = (torch.arange(side, device=sketches.device) + 0.5) / side
    colour = torch.tensor(rgb, device=sketches.device).view(3, 1, 1)
    radius_px = side * DOT_PX / PAGE_PX
    window, reach = 2 * max(1, int(radius_px)) + 1, max(2 * radius_px, MIN_REACH_PX) / side
    positions = []
    for pages in sketches.split(CHUNK):
        weight = (1 - (pages.int() - colour).abs().amax(1) / COLOUR_TOLERANCE).clamp(min=0)  # (e, s, s)
        peak = F.avg_pool2d(weight.unsqueeze(1), window, 1, window // 2).flatten(1).argmax(1)
        at = torch.stack([centre[peak % side], centre[peak // side]], 1)
        for _ in range(PASSES):
            x, y = ((centre - each.unsqueeze(1)).square() for each in at.unbind(1))
            near = weight * (x.unsqueeze(1) + y.unsqueeze(2) <= reach**2)
            at = torch.stack([(near.sum(1) * centre).sum(1), (near.sum(2) * centre).sum(1)], 1)
            at = at / near.sum((1, 2)).clamp(min=1e-6).unsqueeze(1)
        positions.append(torch.where(weight.sum((1, 2)).unsqueeze(1) > 0, at, 0.5))
    return torch.cat(positions)


class SketchCrop(nn.Module):
    """Crops the page (sketch image) around an agent, with the agent's heading up.

    A linear layer learns the size of the page in metres, or its complete frame, from the code of the page, which is its
    features. The size is learned by the gradient of the crop. The frame has no gradient from the crop: its owner trains
    it with true positions.

    Source: Jaderberg et al. 2015, section 3.3 (bilinear sampling; its gradient reaches the size of the page).
    """

    def __init__(self, code: int, page_m: float, crop_m: float, pixels: int, learned: Learned = "size") -> None:
        """
        Args:
            code: Number of features in the code of a page.
            page_m: Initial estimate of the side of the area that a page shows, in metres.
            crop_m: Side of the crop in metres.
            pixels: V, side of the crop in pixels.
            learned: What is learned about a page; with "nothing", the size of all pages is `page_m`.
        """
        super().__init__()
        self.larger: nn.Linear | None = None
        if learned != "nothing":
            self.larger = nn.Linear(code, 1 if learned == "size" else 4)
            nn.init.zeros_(self.larger.weight)
            nn.init.zeros_(self.larger.bias)
        self.page_m, self.crop_m, self.pixels, self.learned = page_m, crop_m, pixels, learned

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
        frame = self.frame(codes)
        if self.learned == "frame":
            frame = frame.detach()
        with torch.autocast(ink.device.type, enabled=False):  # bfloat16 would move the crops by whole rows
            return self._crop(ink, page, starts, frame, gps, compass)

    def _crop(self, ink: Tensor, page: Tensor, starts: Tensor, frame: Tensor, gps: Tensor, compass: Tensor) -> Tensor:
        """Crops the page of each of R agents (rows), as `forward`, from pages with known frames (R, 2, 2).

        `forward` describes the other arguments and the result.
        """
        rows, pages = len(page), len(ink)
        ahead = torch.cat([compass.cos(), compass.sin()], 1)
        right = torch.stack([-ahead[:, 1], ahead[:, 0]], 1)
        middle = 2 * (starts + on_page(frame, gps)) - 1
        right, ahead = (on_page(frame, self.crop_m * direction) for direction in (right, ahead))
        to_x, to_y = torch.stack([right, -ahead, middle], 2).unbind(1)
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

    def frame(self, codes: Tensor) -> Tensor:
        """Estimates the frames (R, 2, 2) float32 of R pages with the features `codes` (R, code)."""
        unit = torch.eye(2, device=codes.device)
        if self.larger is None:
            return self.page_m * unit.expand(len(codes), 2, 2)
        numbers = self.larger(codes).float()
        size = self.page_m * numbers[:, :1, None].clamp(-MAX_LOG_SIZE, MAX_LOG_SIZE).exp()
        if self.learned == "size":
            return size * unit
        stretch, right, down = (MAX_DISTORTION * numbers[:, 1:].tanh()).unbind(1)
        return size * (unit + torch.stack([stretch, right, down, -stretch], 1).view(-1, 2, 2))


def in_metres(frame: Tensor, offset: Tensor) -> Tensor:
    """Converts offsets (R, 2) on R pages with the given frames (R, 2, 2) to metres (R, 2)."""
    return (frame @ offset.unsqueeze(2)).squeeze(2)


def on_page(frame: Tensor, offset_m: Tensor) -> Tensor:
    """Converts offsets (R, 2) in metres to offsets (R, 2) on R pages with the given frames (R, 2, 2)."""
    (a, b), (c, d) = (row.unbind(1) for row in frame.unbind(1))
    x, y = offset_m.unbind(1)
    return torch.stack([d * x - b * y, a * y - c * x], 1) / (a * d - b * c).unsqueeze(1)
