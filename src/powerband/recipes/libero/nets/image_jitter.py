"""Image jitter: random shifts and changes of brightness, contrast and saturation.

Suffixes: B images, H, W pixels, C colours.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NUM_JITTER_PARAMS = 5
"""Parameters of an image's jitter: brightness, contrast, saturation, shift down, shift right."""
MAX_COLOUR_CHANGE = (0.3, 0.4, 0.5)
"""Largest change of the first three factors. Source: the published RDT code, without its change of hue."""
MAX_SHIFT = 1 / 24
"""Largest shift, as a share of the side; the edge pixels of the image fill the gap."""
GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luminance. Source: ITU-R BT.601."""


def jitter_images(images_BHWC: Tensor, draws: Tensor) -> Tensor:
    """Shifts images and changes their colours.

    Args:
        images_BHWC: Images (B images, H rows of pixels, W columns, 3) uint8, or floats in 0..255.
        draws: Parameters (B, 5) in -1..1: changes of brightness, contrast and saturation, shift down, shift right. A
            row of zeros leaves its image unchanged.

    Returns:
        Images of the same shape and dtype.
    """
    brightness, contrast, saturation = (1 + draws[:, number] * limit for number, limit in enumerate(MAX_COLOUR_CHANGE))
    dtype = images_BHWC.dtype
    pixels = shift_images(images_BHWC, draws[:, 3:]).flatten(1, 2)
    if dtype == torch.uint8:
        pixels = pixels.float()
    # The three changes of colour are linear, and so is their composition: one linear map per image.
    to_grey = torch.empty(3, 3, device=draws.device)
    for number, share in enumerate(GREY):
        to_grey[number] = share
    mean = (pixels.mean(1) * to_grey[:, 0]).sum(1)
    keep = saturation.view(-1, 1, 1)
    colour = keep * torch.eye(3, device=draws.device) + (1 - keep) * to_grey
    colour = (brightness * contrast).view(-1, 1, 1) * colour
    light = ((1 - contrast) * brightness * mean).view(-1, 1, 1).expand(-1, 1, 3)
    with torch.autocast(draws.device.type, enabled=False):  # bf16 does not distinguish all 256 levels
        pixels = torch.baddbmm(light.to(pixels.dtype), pixels, colour.to(pixels.dtype)).clamp_(0, 255)
    return (pixels.round_().to(dtype) if dtype == torch.uint8 else pixels).view_as(images_BHWC)


def shift_images(images_BHWC: Tensor, draws: Tensor) -> Tensor:
    """Returns B images, shifted down and right by `draws` (B, 2) in -1..1; 1 is 1/24 of the side of an image.

    The function copies whole pixel rows, which is fast.
    """
    rows, height, width, colours = images_BHWC.shape
    margins = [math.ceil(MAX_SHIFT * side) for side in (height, width)]
    padded = images_BHWC
    for axis, margin in enumerate(margins, 1):
        first, last = padded.narrow(axis, 0, 1), padded.narrow(axis, padded.shape[axis] - 1, 1)
        size = [-1, -1, -1, -1]
        size[axis] = margin
        padded = torch.cat([first.expand(size), padded, last.expand(size)], axis)
    down, right = (
        (margin + (draws[:, number] * MAX_SHIFT * side).round()).long().unsqueeze(1)
        for number, (margin, side) in enumerate(zip(margins, (height, width), strict=True))
    )
    starts = torch.arange(rows, device=draws.device).unsqueeze(1) * padded.shape[1] + down
    starts = (starts + torch.arange(height, device=draws.device)) * padded.shape[2] + right
    return padded.flatten().unfold(0, width * colours, colours)[starts.flatten()].view(rows, height, width, colours)
