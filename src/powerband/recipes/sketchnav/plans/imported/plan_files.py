"""Plan files: reads a folder of floor plans as pictures (PNG, PGM, JPEG), SVG drawings and ROS maps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.cell_codes import CELL_M
from powerband.recipes.sketchnav.plans.imported.occupancy import grow_floor, plan_from_cells, walls_to_cells
from powerband.recipes.sketchnav.plans.imported.pictures import read_grey
from powerband.recipes.sketchnav.plans.imported.ros_map import MapFile, read_map_file
from powerband.recipes.sketchnav.plans.imported.svg import read_svg
from powerband.recipes.sketchnav.plans.plan import Plan
from powerband.recipes.sketchnav.settings import Split

PICTURES = (".png", ".pgm", ".jpg", ".jpeg", ".bmp")
MAPS = (".yaml", ".yml")
DARK = 128
"""Grey values below this one are walls."""
MAX_PLANS = 10_000
MIN_SCALE, MAX_SCALE = 0.001, 0.5
"""Range of metres per pixel; a door is narrower than two pixels of the largest value."""
SVG_PIXEL_M = 0.02
"""Side of a pixel, in metres, with which SVG drawings are drawn."""
HELD_OUT = 5
"""One plan in this number is held out for val_unseen."""


@dataclass(frozen=True)
class ImportedPlan:
    """A floor plan of the user.

    Attributes:
        name: Name of the file.
        plan: The plan.
        origin: Column and row, in cells of the picture, of the plan's upper left corner.
        map: Contents of its map file; None for a picture without one.
    """

    name: str
    plan: Plan
    origin: tuple[int, int]
    map: MapFile | None

    def cell_at(self, x: float, z: float) -> tuple[float, float]:
        """Returns the position (column, row), in cells of the plan, of a point of a Habitat world.

        Args:
            x: World coordinate to the right, in metres.
            z: World coordinate towards the viewer, in metres; down in the picture.
        """
        assert self.map is not None and self.map.corner is not None
        corner = self.map.corner
        return (x - corner[0]) / CELL_M - self.origin[0], (z - corner[1]) / CELL_M - self.origin[1]


def read_plans(folder: Path, metres_per_pixel: float) -> list[ImportedPlan]:
    """Reads all plans of a folder in the order of their names.

    Each YAML file is a map, whose picture is not read a second time. The last four folders are kept in memory until one
    of their files changes.

    Args:
        folder: Folder with PNG, PGM, JPEG, BMP, SVG and YAML files. Other files are ignored.
        metres_per_pixel: Scale of pictures without a map file, and metres per unit of SVG drawings; 0 is unknown.

    Raises:
        ConfigError: The folder has no plan, a file is not a valid plan, or its scale is unknown.
    """
    if not folder.is_dir():
        raise ConfigError(f"plans_dir={folder} is not a folder. Name a folder of PNG, SVG or ROS map files.")
    suffixes = (*PICTURES, *MAPS, ".svg")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes)
    if not 1 <= len(files) <= MAX_PLANS:
        raise ConfigError(
            f"plans_dir={folder} has {len(files):,} floor plans; 1 to {MAX_PLANS:,} are possible. Add PNG, PGM or JPEG "
            f"pictures, SVG drawings, or ROS maps (YAML with a picture)."
        )
    state = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in files)
    return list(_read_files(state, metres_per_pixel))


@lru_cache(maxsize=4)
def _read_files(state: tuple[tuple[Path, int, int], ...], metres_per_pixel: float) -> tuple[ImportedPlan, ...]:
    """Reads the plans of files (path, time of change, bytes)."""
    files = [path for path, _, _ in state]
    maps = {path: read_map_file(path) for path in files if path.suffix.lower() in MAPS}
    used = {map_file.picture.resolve() for map_file in maps.values()}
    plans: list[ImportedPlan] = []
    for path in files:
        if path.resolve() in used:
            continue
        map_file = maps.get(path)
        scale = map_file.resolution if map_file else metres_per_pixel
        cells = _occupied_cells(path, map_file, scale)
        plan, origin = plan_from_cells(cells, str(path), len(plans))
        plans.append(ImportedPlan(path.name, plan, origin, map_file))
    return tuple(plans)


def _occupied_cells(path: Path, map_file: MapFile | None, scale: float) -> np.ndarray:
    """Reads one file as occupied cells (H, W) bool.

    Raises:
        ConfigError: The file is not valid, or its scale is unknown or out of range.
    """
    if not MIN_SCALE <= scale <= MAX_SCALE and not (path.suffix.lower() == ".svg" and scale > 0):
        stated = f"resolution: {scale:g}" if map_file else f"metres_per_pixel={scale:g}"
        raise ConfigError(
            f"{path}: {stated} is not {MIN_SCALE:g} to {MAX_SCALE:g} metres per pixel. Write metres_per_pixel=0.02, "
            f"for example, or a YAML file next to the picture with image: {path.name} and resolution: 0.02."
        )
    if map_file is not None:
        walls = map_file.read_walls()
        if map_file.navigable:
            return grow_floor(~walls_to_cells(walls, scale, str(path)))
        return walls_to_cells(walls, scale, str(path))
    if path.suffix.lower() == ".svg":
        return walls_to_cells(read_svg(path, scale, SVG_PIXEL_M) < DARK, SVG_PIXEL_M, str(path))
    return walls_to_cells(read_grey(path) < DARK, scale, str(path))


def plans_of_split(plans: list[ImportedPlan], split: Split) -> list[ImportedPlan]:
    """Returns the plans of a split: one in five, the last one among them, is held out for val_unseen.

    A single plan belongs to all splits.
    """
    held_out = {len(plans) - 1 - back for back in range(0, len(plans), HELD_OUT)}
    if len(plans) == 1:
        return plans
    return [plan for number, plan in enumerate(plans) if (number in held_out) == (split == "val_unseen")]
