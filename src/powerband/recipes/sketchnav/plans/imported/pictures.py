"""Pictures: reads an image file as grey values, after its size in the header was checked."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from powerband.core.errors import ConfigError

MAX_SIDE_PX = 8192
"""Largest width and height of a picture in pixels."""
FORMATS = ("PNG", "PPM", "JPEG", "BMP")
"""Formats that are decoded; Pillow calls PGM a kind of PPM."""


def read_grey(path: Path) -> np.ndarray:
    """Reads a picture as grey values (height, width) uint8. Transparent pixels become white.

    Raises:
        ConfigError: The file cannot be read, is not a PNG, PGM, JPEG or BMP, or is larger than 8,192 pixels. The size
            is read from the header, so a larger picture is not decoded.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is smaller
            picture = Image.open(path, formats=FORMATS)
        if max(picture.size) > MAX_SIDE_PX:
            raise ConfigError(
                f"{path} has {picture.width:,} x {picture.height:,} pixels; the limit is {MAX_SIDE_PX:,} along each "
                f"side. Scale the picture down, and raise its metres per pixel by the same factor."
            )
        with picture:
            if picture.mode.startswith("I"):  # 16 bits
                return (np.asarray(picture).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
            return np.asarray(on_white(picture).convert("L"))
    except Image.DecompressionBombError as error:
        raise ConfigError(
            f"{path} is too large: {error} The limit is {MAX_SIDE_PX:,} pixels along each side. Scale it down."
        ) from None
    except (OSError, SyntaxError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not a valid picture: {error}. Use a PNG, PGM, JPEG or BMP file.") from None


def on_white(picture: Any) -> Any:
    """Returns a PIL picture whose transparent pixels are white, as paper is; without any, `picture` itself."""
    from PIL import Image

    if picture.mode not in ("RGBA", "LA", "PA") and "transparency" not in picture.info:
        return picture
    coloured = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", coloured.size, (255, 255, 255, 255)), coloured)
