"""Map file: reads and checks a hidden map that the user provides as an array or an image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from powerband.core.config.texts import SHOWN_PATH, shortened
from powerband.core.errors import ConfigError
from powerband.recipes.uav.settings import World


def load_map_file(world: World) -> np.ndarray | None:
    """Loads the hidden map from the file that ``world.map_file`` names.

    Returns:
        (map_cells, map_cells) uint8, 1 in the region of interest; None if ``world.map_file`` is empty.

    Raises:
        ConfigError: The file does not exist, or has another format, shape or values.
    """
    if not world.map_file:
        return None
    path, size = Path(world.map_file), world.map_cells
    name = f"world.map_file={shortened(path, SHOWN_PATH)}"
    if not path.is_file() or path.suffix not in (".npy", ".png"):
        raise ConfigError(f"{name} does not exist, or is not a .npy or .png file. Write another path.")
    if path.suffix == ".npy":
        try:
            image = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ConfigError(
                f"{name} is not an array of numbers ({shortened(error)}). Save "
                f"an array of uint8 with numpy.save: 1 in the region of interest, 0 elsewhere."
            ) from None
        allowed = (0, 1)
    else:
        from PIL import Image

        try:
            image, allowed = np.asarray(Image.open(path).convert("L")), (0, 255)
        except OSError as error:  # also UnidentifiedImageError
            raise ConfigError(
                f"{name} is not a readable image ({shortened(error)}). Save a black and white .png: white in the "
                f"region of interest, black elsewhere."
            ) from None
    if image.shape != (size, size):
        raise ConfigError(
            f"{name} has the shape {image.shape}, expected {(size, size)}. Resize the map, or, if it is "
            f"square, write world.map_cells={image.shape[0]}."
        )
    values = np.unique(image)
    if not np.isin(values, allowed).all():
        shown = ", ".join(f"{value:g}" for value in values[:6])
        raise ConfigError(
            f"{name} contains {shown}{' ...' if len(values) > 6 else ''}: only {allowed} are allowed. "
            f"The larger value marks the region of interest."
        )
    if len(values) < 2:
        raise ConfigError(
            f"{name} contains only {values[0]:g}. A map needs cells inside and outside the region of "
            f"interest: {allowed[1]} marks the inside, {allowed[0]} the outside."
        )
    return (image == allowed[1]).astype(np.uint8)
