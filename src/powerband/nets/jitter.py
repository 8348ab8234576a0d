"""Jitter: pictures as another light and a camera that stands a little elsewhere would have made them.

Suffixes: B pictures, H, W pixels, C colours.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DRAWS = 5
"""Numbers that say what is done to a picture: brightness, contrast, saturation, down, right."""
MOST = (0.3, 0.4, 0.5)
"""Largest change of the factors of the first three. Source: the published RDT code, without its change of hue."""
SHIFT = 1 / 24
"""Largest move, as a share of the side; what comes in from outside is the picture's edge."""
GREY = (0.299, 0.587, 0.114)
"""Of red, green and blue. Source: ITU-R BT.601."""


def jittered(pictures_BHWC: Tensor, draws: Tensor) -> Tensor:
    """Moves pictures and changes their light.

    Args:
        pictures_BHWC: (B, H, W, 3) uint8, or floats in 0..255.
        draws: (B, DRAWS) in -1..1; a row of zeros leaves its picture as it is.

    Returns:
        The same shape and type.
    """
    brightness, contrast, saturation = (1 + draws[:, number] * most for number, most in enumerate(MOST))
    known = pictures_BHWC.dtype
    found = moved(pictures_BHWC, draws[:, 3:]).flatten(1, 2)
    if known == torch.uint8:
        found = found.float()
    # All three changes of colour are linear, and so is all of them: one map of each picture.
    to_grey = torch.empty(3, 3, device=draws.device)
    for number, share in enumerate(GREY):
        to_grey[number] = share
    mean = (found.mean(1) * to_grey[:, 0]).sum(1)
    keep = saturation.view(-1, 1, 1)
    colour = keep * torch.eye(3, device=draws.device) + (1 - keep) * to_grey
    colour = (brightness * contrast).view(-1, 1, 1) * colour
    light = ((1 - contrast) * brightness * mean).view(-1, 1, 1).expand(-1, 1, 3)
    with torch.autocast(draws.device.type, enabled=False):  # bytes have more levels than bf16 keeps apart
        found = torch.baddbmm(light.to(found.dtype), found, colour.to(found.dtype)).clamp_(0, 255)
    return (found.round_().to(known) if known == torch.uint8 else found).view_as(pictures_BHWC)


def moved(pictures_BHWC: Tensor, draws: Tensor) -> Tensor:
    """Pictures moved down and right by `draws` (B, 2) in -1..1 of SHIFT; rows are copied whole, which is fast."""
    rows, height, width, colours = pictures_BHWC.shape
    most = [math.ceil(SHIFT * side) for side in (height, width)]
    wide = pictures_BHWC
    for axis, margin in enumerate(most, 1):
        first, last = wide.narrow(axis, 0, 1), wide.narrow(axis, wide.shape[axis] - 1, 1)
        size = [-1, -1, -1, -1]
        size[axis] = margin
        wide = torch.cat([first.expand(size), wide, last.expand(size)], axis)
    down, right = (
        (margin + (draws[:, number] * SHIFT * side).round()).long().unsqueeze(1)
        for number, (margin, side) in enumerate(zip(most, (height, width), strict=True))
    )
    begins = torch.arange(rows, device=draws.device).unsqueeze(1) * wide.shape[1] + down
    begins = (begins + torch.arange(height, device=draws.device)) * wide.shape[2] + right
    return wide.flatten().unfold(0, width * colours, colours)[begins.flatten()].view(rows, height, width, colours)
