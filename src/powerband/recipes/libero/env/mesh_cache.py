"""Caches simplified meshes on disk: a process reads the meshes that an earlier process simplified. No torch here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from powerband.core.machine.disk_cache import DiskCache, digest

MESH_CACHE = DiskCache(
    "meshes", 2000, "a cached mesh is invalid and is simplified again", "simplified meshes cannot be cached"
)
"""Disk cache of at most 2000 meshes, about 20 kB each."""


def cached_mesh_corners(
    positions: np.ndarray, normals: np.ndarray, texture: np.ndarray | None, tolerance: float
) -> np.ndarray:
    """Simplifies a mesh with `simplify_mesh`, or reads the result from the disk cache if it is stored there.

    Args:
        positions: Positions of each corner (faces, 3, 3) in metres.
        normals: Unit normals of each corner (faces, 3, 3).
        texture: Texture coordinates of each corner (faces, 3, 2); None if the mesh has no texture.
        tolerance: Largest error of the simplified surface in metres.

    Returns:
        Corners of the remaining faces (remaining faces, 3) int32, as indices of the 3 * faces original corners.
    """
    file = MESH_CACHE.file(_source_code(), repr(float(tolerance)).encode(), positions, normals, texture)
    corners = MESH_CACHE.read(file, lambda file: _load(file, 3 * len(positions)))
    if corners is not None:
        return corners
    from powerband.recipes.libero.env.mesh_simplification import simplify_mesh  # imports numba, which takes a second

    simplified = simplify_mesh(positions, normals, texture, tolerance)
    MESH_CACHE.write(file, lambda part: save_file({"corners": simplified}, part, {"digest": digest(simplified)}))
    return simplified


@cache
def _source_code() -> bytes:
    """Returns the source code that simplifies meshes, a part of the cache key: changed code uses other cache files."""
    folder = Path(__file__).parent
    return b"".join((folder / name).read_bytes() for name in ("mesh_simplification.py", "edge_collapse.py"))


def _load(file: Path, num_corners: int) -> np.ndarray:
    """Reads the corners of a simplified mesh, and checks that its indices are below `num_corners`.

    Raises:
        ValueError: The file is damaged or holds something else.
        OSError: The file cannot be read.
        SafetensorError: The file cannot be parsed.
    """
    with safe_open(str(file), framework="numpy") as content:
        metadata, corners = content.metadata() or {}, content.get_tensor("corners")
    valid = corners.dtype == np.int32 and corners.ndim == 2 and metadata.get("digest") == digest(corners)
    if not valid or corners.min(initial=0) < 0 or corners.max(initial=0) >= num_corners:
        raise ValueError(f"{file} is damaged")
    return corners
