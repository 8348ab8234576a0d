"""Kept episode sets: what was drawn lies in the user's cache folder, so that the next start reads it.

The name of a file is a hash of all that a set follows from. A file that is not what its name says is drawn anew; a
folder that cannot be written costs the time to draw and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
import warnings
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from powerband.envs.sketchnav import distance, episodes, plan, sketch, surfaces
from powerband.envs.sketchnav.episodes import VERSION, Episodes, Scenes, Split
from powerband.nets import sketch_view

MOST = 20
"""Files that are kept: those that were used last."""
LEAST = 400
"""Smaller sets are not kept: they are drawn within two seconds."""
STALE_S = 3600.0
"""What was half written so long ago belongs to a process that is gone."""


def user_cache() -> Path | None:
    """The user's folder of drawn sets; None for a user who has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "powerband" / "episodes"
    except RuntimeError:
        return None


@cache
def _sources() -> str:
    """SHA-256 of the text of all modules that draw, and the version of numpy, whose generators they ask."""
    found = hashlib.sha256(np.__version__.encode())
    for module in (distance, episodes, plan, sketch, sketch_view, surfaces):
        found.update(Path(module.__file__).read_bytes())
    return found.hexdigest()


def kept_file(scenes: Scenes, split: Split, seed: int) -> Path | None:
    """Where the set of this split lies once it was drawn; None keeps none."""
    origin, folder = [VERSION, _sources(), asdict(scenes), split, seed], user_cache()
    name = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:32]
    return None if folder is None else folder / f"{name}.safetensors"


def read_kept(file: Path, scenes: Scenes, split: Split, seed: int) -> Episodes | None:
    """The set in `file`; None where there is none, and, with a warning, where it is another or damaged."""
    if not os.path.exists(file):  # False, too, where the folder may not be looked into
        return None
    try:
        found, said = Episodes.load(file)
        drawn_from = (said["scenes"], said["split"], said["seed"])
    except (ValueError, KeyError) as error:
        warnings.warn(f"kept episodes are drawn anew: {error}", stacklevel=2)
        return None
    if drawn_from != (asdict(scenes), split, str(seed)) or "sha256" not in said:
        warnings.warn(f"kept episodes are drawn anew: {file} holds another set.", stacklevel=2)
        return None
    try:
        os.utime(file)  # was used last
    except OSError:
        pass
    return found


def keep(found: Episodes, file: Path, scenes: Scenes, split: Split, seed: int) -> None:
    """Writes a set as a whole or not at all, whoever writes the same; removes what was used longest ago."""
    part = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.safetensors")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        found.save(part, scenes, split, seed)
        part.replace(file)
        _limit(file.parent)
    except (OSError, SafetensorError) as error:
        for left in (part, part.with_suffix(".part")):
            try:
                left.unlink(missing_ok=True)
            except OSError:
                pass
        warnings.warn(
            f"the drawn episodes are not kept: {error}. Make {file.parent} writable, set XDG_CACHE_HOME to another "
            f"folder, or write keep_episodes=false.",
            stacklevel=2,
        )


def _limit(folder: Path) -> None:
    """Removes sets beyond `MOST`, and what processes that are gone have left half written."""
    whole, parts = {}, []
    for path in folder.iterdir():
        try:
            used = path.stat().st_mtime
        except OSError:  # another process has just removed it
            continue
        if path.suffix == ".part" or "." in path.stem:
            parts += [path] if time.time() - used > STALE_S else []
        elif path.suffix == ".safetensors":
            whole[path] = used
    for path in [*parts, *sorted(whole, key=whole.__getitem__)[:-MOST]]:
        path.unlink(missing_ok=True)
