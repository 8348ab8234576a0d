"""Kept episode sets: what was drawn lies in the user's cache folder, so that the next start reads it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np

from powerband.core.kept import Kept
from powerband.envs.sketchnav import distance, episodes, plan, sketch, surfaces
from powerband.envs.sketchnav.episodes import VERSION, Episodes, Scenes, Split
from powerband.nets import sketch_view

LEAST = 400
"""Smaller sets are not kept: they are drawn within two seconds."""
SETS = Kept(
    "episodes", 20, "kept episodes are drawn anew", "the drawn episodes are not kept", ", or write keep_episodes=false"
)


@cache
def _sources() -> str:
    """SHA-256 of the text of all modules that draw, and the version of numpy, whose generators they ask."""
    found = hashlib.sha256(np.__version__.encode())
    for module in (distance, episodes, plan, sketch, sketch_view, surfaces):
        found.update(Path(module.__file__).read_bytes())
    return found.hexdigest()


def kept_file(scenes: Scenes, split: Split, seed: int) -> Path | None:
    """Where the set of this split lies once it was drawn; None keeps none."""
    origin = [VERSION, _sources(), asdict(scenes), split, seed]
    return SETS.file(json.dumps(origin, sort_keys=True).encode())


def read_kept(file: Path, scenes: Scenes, split: Split, seed: int) -> Episodes | None:
    """The set in `file`; None where there is none, and, with a warning, where it is another or damaged."""

    def load(file: Path) -> Episodes:
        found, said = Episodes.load(file)
        if (said["scenes"], said["split"], said["seed"]) != (asdict(scenes), split, str(seed)) or "sha256" not in said:
            raise ValueError(f"{file} holds another set")
        return found

    return SETS.read(file, load)


def keep(found: Episodes, file: Path, scenes: Scenes, split: Split, seed: int) -> None:
    """Writes a set as a whole or not at all; see `Kept.keep`."""
    SETS.keep(file, lambda part: found.save(part, scenes, split, seed))
