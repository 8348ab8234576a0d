"""Map files: reads the YAML file next to a picture that states its scale, as ROS's map_server writes it.

The file names the picture and its ``resolution`` in metres per pixel. ROS adds thresholds of occupancy. Maps of Habitat
scenes add ``corner``, ``scene``, ``floor`` and ``navigable``, which are explained at `MapFile`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from powerband.core.config.plain_yaml import SafeLoaderWithoutAliases
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.imported.pictures import read_grey

MAX_YAML_BYTES = 65_536
OCCUPIED, FREE = 0.65, 0.196
"""Thresholds of occupancy that map_server uses if the file states none."""


@dataclass(frozen=True)
class MapFile:
    """Contents of a map file.

    Attributes:
        picture: Path of the picture.
        resolution: Metres per pixel.
        negate: White is occupied instead of black.
        free: A pixel is free if its occupancy (0 to 1) is below this value; other pixels become walls. This holds for
            unknown pixels, too, because an agent must neither see nor move there.
        corner: World coordinates (x, z) in metres of the picture's upper left corner in Habitat; None for other maps.
        scene: Name of the Habitat scene.
        floor: Height y of the floor in Habitat's world, in metres; None if the scene has one floor.
        navigable: Free pixels are positions that the centre of the agent can take, as on a navigation mesh.
    """

    picture: Path
    resolution: float
    negate: bool
    free: float
    corner: tuple[float, float] | None
    scene: str
    floor: float | None
    navigable: bool

    def read_walls(self) -> np.ndarray:
        """Reads the picture (height, width) as bool, True for walls and for unknown pixels."""
        grey = read_grey(self.picture).astype(np.float32) / 255
        occupancy = grey if self.negate else 1 - grey
        return occupancy >= self.free


def read_map_file(path: Path) -> MapFile:
    """Reads a map file.

    Raises:
        ConfigError: The file is not valid, or names a picture outside its folder.
    """
    try:
        if path.stat().st_size > MAX_YAML_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_YAML_BYTES:,} bytes. Name the YAML file of a map.")
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=SafeLoaderWithoutAliases)
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError, OverflowError, yaml.YAMLError) as error:
        problem = shortened(error)
        raise ConfigError(f"{path} cannot be read: {problem}. Write image: FILE and resolution: METRES.") from None
    if not isinstance(entries, dict) or not isinstance(entries.get("image"), str):
        raise ConfigError(f"{path} names no picture. Write image: FILE and resolution: METRES, as map_server does.")
    if "\0" in entries["image"]:
        raise ConfigError(f"{path}: image: names no file. Write image: FILE, with a file next to this one.")
    picture = path.parent / entries["image"]
    if picture.resolve().parent != path.parent.resolve():
        raise ConfigError(f"{path}: image: {entries['image']} is in another folder. Put the picture next to the file.")
    mode = entries.get("mode", "trinary")
    if mode not in ("trinary", "scale"):
        raise ConfigError(f"{path}: mode: {shortened(mode)} is not supported. Save the map with mode: trinary.")
    corner = entries.get("corner")
    if corner is not None:
        if not isinstance(corner, list) or len(corner) != 2:
            raise ConfigError(
                f"{path}: corner: {shortened(corner)} is not [x, z] of the picture's upper left corner, in metres."
            )
        corner = (_number(path, "corner", corner[0]), _number(path, "corner", corner[1]))
    free, occupied = (
        _number(path, name, entries.get(name, default))
        for name, default in (("free_thresh", FREE), ("occupied_thresh", OCCUPIED))
    )
    if not 0 < free <= occupied <= 1:
        raise ConfigError(
            f"{path}: free_thresh: {free:g} and occupied_thresh: {occupied:g} must rise from above 0 to 1. Write "
            f"free_thresh: {FREE} and occupied_thresh: {OCCUPIED}."
        )
    floor, scene = entries.get("floor"), entries.get("scene", path.stem)
    if not isinstance(scene, str | int):
        raise ConfigError(f"{path}: scene: {shortened(scene)} is not a name. Write scene: NAME.")
    return MapFile(
        picture=picture,
        resolution=_number(path, "resolution", entries.get("resolution")),
        negate=bool(entries.get("negate", False)),
        free=free,
        corner=corner,
        scene=str(scene),
        floor=None if floor is None else _number(path, "floor", floor),
        navigable=bool(entries.get("navigable", False)),
    )


def _number(path: Path, name: str, value: Any) -> float:
    """Returns a finite number from a map file.

    Raises:
        ConfigError: The entry `name` is missing or not a number.
    """
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{path}: {name}: {shortened(value)} is not a number. Write {name}: 0.05, for example.")
    return number
