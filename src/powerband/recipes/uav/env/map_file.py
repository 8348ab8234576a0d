"""Map file: reads and checks a hidden map that the user provides."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from powerband.core.errors import ConfigError
from powerband.recipes.uav.settings import World


def load_map_file(world: World) -> np.ndarray | None:
    """Loads the hidden map that ``world.map_file`` names.

    Returns:
        (map_cells, map_cells) uint8, 1 in the region of interest; None if the setting is empty.

    Raises:
        ConfigError: The file does not exist, or has another format, shape or values.
    """
    if not world.map_file:
        return None
    path, size = Path(world.map_file), world.map_cells
    if not path.is_file() or path.suffix not in (".npy", ".png"):
        raise ConfigError(f"map_file={path} does not exist, or is not a .npy or .png file. Write another path.")
    if path.suffix == ".npy":
        try:
            image = np.load(path, allow_pickle=False)
        except ValueError as error:
            raise ConfigError(
                f"map_file={path} is not an array of numbers ({error}). Save 0 and 1 as uint8 with numpy.save."
            ) from None
        allowed = (0, 1)
    else:
        from PIL import Image

        image, allowed = np.asarray(Image.open(path).convert("L")), (0, 255)
    if image.shape != (size, size):
        raise ConfigError(
            f"map_file={path} has the shape {image.shape}, expected {(size, size)}. Resize the map, or write "
            f"map_cells={image.shape[0]} if it is square."
        )
    values = np.unique(image)
    if not np.isin(values, allowed).all():
        shown = ", ".join(f"{value:g}" for value in values[:6])
        raise ConfigError(
            f"map_file={path} contains {shown}{' ...' if len(values) > 6 else ''}: only {allowed} are allowed."
        )
    if len(values) < 2:
        raise ConfigError(
            f"map_file={path} contains only {values[0]:g}. A map has cells inside and outside the region."
        )
    return (image == allowed[1]).astype(np.uint8)
