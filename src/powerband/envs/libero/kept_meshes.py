"""Simplified meshes in the user's cache folder: the next start reads what this one has computed. No torch here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from powerband.core.kept import Kept, digest

MESHES = Kept("meshes", 2000, "a kept mesh is simplified anew", "simplified meshes are not kept")
"""Some 20 kB each."""


def coarse_corners(places: np.ndarray, normals: np.ndarray, texture: np.ndarray | None, tolerance: float) -> np.ndarray:
    """(faces left, 3) int32: as `coarse.coarse`, whose arguments these are; from the user's cache, or kept there."""
    file = MESHES.file(_source(), repr(float(tolerance)).encode(), places, normals, texture)
    found = MESHES.read(file, lambda file: _load(file, 3 * len(places)))
    if found is None:
        from powerband.envs.libero.coarse import coarse  # numba, which takes a second to import

        found = coarse(places, normals, texture, tolerance)
        MESHES.keep(file, lambda part: save_file({"corners": found}, part, {"digest": digest(found)}))
    return found


@cache
def _source() -> bytes:
    """The text of the modules that simplify."""
    return b"".join(Path(__file__).with_name(name).read_bytes() for name in ("coarse.py", "collapse.py"))


def _load(file: Path, corners: int) -> np.ndarray:
    """The mesh in a file, of numbers below `corners`.

    Raises:
        ValueError, OSError, SafetensorError: It is damaged, or another file.
    """
    with safe_open(str(file), framework="numpy") as content:
        said, found = content.metadata() or {}, content.get_tensor("corners")
    whole = found.dtype == np.int32 and found.ndim == 2 and said.get("digest") == digest(found)
    if not whole or found.min(initial=0) < 0 or found.max(initial=0) >= corners:
        raise ValueError(f"{file} is damaged")
    return found
