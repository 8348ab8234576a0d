"""Simplified meshes in the user's cache folder: the next start reads what this one has computed. No torch here.

The name of a file is a hash of all that its content follows from. A file that is not what its name says is computed
anew; a folder that cannot be written costs the time to compute and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
import warnings
from functools import cache
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

MOST = 2000
"""Files that are kept, of some 20 kB each: those that were used last."""
STALE_S = 3600.0
"""What was half written so long ago belongs to a process that is gone."""


def user_cache() -> Path | None:
    """The user's folder of simplified meshes; None for a user who has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "powerband" / "meshes"
    except RuntimeError:
        return None


def coarse_corners(places: np.ndarray, normals: np.ndarray, texture: np.ndarray | None, tolerance: float) -> np.ndarray:
    """(faces left, 3) int32: as `coarse.coarse`, whose arguments these are; from the user's cache, or kept there."""
    folder, name = user_cache(), _digest(_source(), repr(float(tolerance)).encode(), places, normals, texture)
    file = None if folder is None else folder / f"{name}.safetensors"
    found = None if file is None else _read(file, 3 * len(places))
    if found is None:
        from powerband.envs.libero.coarse import coarse  # numba, which takes a second to import

        found = coarse(places, normals, texture, tolerance)
        if file is not None:
            _keep(found, file)
    return found


@cache
def _source() -> bytes:
    """The text of the modules that simplify."""
    return b"".join(Path(__file__).with_name(name).read_bytes() for name in ("coarse.py", "collapse.py"))


def _digest(*parts: bytes | np.ndarray | None) -> str:
    digest = hashlib.sha256()
    for part in parts:
        whole = b"none" if part is None else part
        if isinstance(whole, np.ndarray):
            digest.update(f"{whole.shape} {whole.dtype}".encode())
            whole = np.ascontiguousarray(whole).data
        digest.update(whole)
    return digest.hexdigest()[:32]


def _read(file: Path, corners: int) -> np.ndarray | None:
    """What is kept in a file; None where there is none, and, with a warning, where it is damaged."""
    if not os.path.exists(file):  # False, too, where the folder may not be looked into
        return None
    try:
        with safe_open(str(file), framework="numpy") as content:
            said, found = content.metadata() or {}, content.get_tensor("corners")
        whole = found.dtype == np.int32 and found.ndim == 2 and said.get("digest") == _digest(found)
        if not whole or found.min(initial=0) < 0 or found.max(initial=0) >= corners:
            raise ValueError(f"{file} is damaged")
    except (OSError, ValueError, SafetensorError) as error:
        warnings.warn(f"a kept mesh is simplified anew: {error}.", stacklevel=2)
        return None
    try:
        os.utime(file)  # was used last
    except OSError:
        pass
    return found


def _keep(corners: np.ndarray, file: Path) -> None:
    """Writes a mesh as a whole or not at all, whoever writes the same; removes what was used longest ago."""
    part = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"corners": corners}, part, {"digest": _digest(corners)})
        part.replace(file)
        _limit(file.parent)
    except (OSError, SafetensorError) as error:
        try:
            part.unlink(missing_ok=True)
        except OSError:
            pass
        warnings.warn(
            f"simplified meshes are not kept ({getattr(error, 'strerror', None) or error}). Make {file.parent} "
            f"writable, or set XDG_CACHE_HOME to another folder.",
            stacklevel=2,
        )


def _limit(folder: Path) -> None:
    """Removes meshes beyond `MOST`, and what processes that are gone have left half written."""
    whole, parts = {}, []
    for path in folder.iterdir():
        try:
            used = path.stat().st_mtime
        except OSError:  # another process has just removed it
            continue
        if path.suffix == ".part":
            parts += [path] if time.time() - used > STALE_S else []
        elif path.suffix == ".safetensors":
            whole[path] = used
    for path in [*parts, *sorted(whole, key=whole.__getitem__)[:-MOST]]:
        path.unlink(missing_ok=True)
