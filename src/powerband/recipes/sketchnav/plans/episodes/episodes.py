"""Episodes: holds, saves and loads the floor plans, starts, goals and sketches of a split.

A set is saved as a safetensors file with metadata, which contains no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.config.texts import SHOWN_PATH, shortened, some_of
from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.plans.cell_codes import CELL_M
from powerband.recipes.sketchnav.settings import EpisodeConfig, Split

VERSION = 1
"""Version of the files of episodes and of the recordings of demonstrations."""
HEADINGS = 36
"""Headings of an agent, 10 degrees apart."""
COORDINATE_UNIT_M = 1 / 64_000
"""Unit of coordinates in metres: 1/64 mm. Positions are integers, so that they are the same bits on every device."""
CELL_UNITS = round(CELL_M / COORDINATE_UNIT_M)
"""Side of a cell in units of coordinates."""

OBSERVED = ("cells", "size", "plan", "start", "target")
"""Tensors on which the observations of the shortest-path follower depend, all of them integers. Sketches are none."""


@dataclass(frozen=True)
class Episodes:
    """E episodes in P plans with F goals. Coordinates are in 1/64 mm.

    A plan has H x W cells, a shortest path has L corners, and a sketch has s x s pixels. Arrays whose size differs
    between plans or paths are concatenated. An array of offsets has the first index of each plan, goal or path.

    The names of the fields are the names of the tensors in files.

    Attributes:
        cells: Codes of the cells of all plans (sum of H W,) uint8: numbers for floor, wall, door frame or furniture.
        field: Length of the shortest path from each cell to each goal (sum of H W,) int16, in units of 2 mm; -1 for
            cells without a path.
        cells_at: Offsets of the plans in `cells` (P,) int64.
        field_at: Offsets of the goals in `field` (F,) int64.
        size: Heights and widths of the plans in cells (P, 2) int32.
        plan: Index of the plan of each episode (E,) int32.
        goal: Index, 0 to F - 1, of the goal of each episode (E,) int32.
        start: Starts (E, 3) int32: x, y, and heading in tens of degrees.
        target: Positions (x, y) of the goals (E, 2) int32.
        length: Lengths of the shortest paths in metres (E,) float64.
        way: Corners (x, y) of the shortest paths (sum of L, 2) int32.
        left: Remaining metres of the path from each corner (sum of L,) float64.
        way_at: Offsets of the paths in `way` (E + 1,) int64.
        sketch: Sketches (E, 3, s, s) uint8.
    """

    cells: Tensor
    field: Tensor
    cells_at: Tensor
    field_at: Tensor
    size: Tensor
    plan: Tensor
    goal: Tensor
    start: Tensor
    target: Tensor
    length: Tensor
    way: Tensor
    left: Tensor
    way_at: Tensor
    sketch: Tensor

    def __len__(self) -> int:
        return self.plan.shape[0]

    def to(self, device: torch.device | str) -> Episodes:
        """Returns the episodes on a device."""
        return Episodes(**{name: value.to(device) for name, value in vars(self).items()})

    def plan_cells(self, plan: int) -> np.ndarray:
        """Returns the cells (H rows, W columns) uint8 of plan number `plan`: codes for floor, wall, furniture."""
        height, width = self.size[plan].tolist()
        first = int(self.cells_at[plan])
        return self.cells[first : first + height * width].view(height, width).cpu().numpy()

    def path_corners(self, episode: int) -> np.ndarray:
        """Returns the L corners (L, 2), x and y in metres, of the shortest path of episode number `episode`."""
        first, last = self.way_at[episode : episode + 2].tolist()
        return self.way[first:last].cpu().numpy() * COORDINATE_UNIT_M

    def digest(self, names: Collection[str] = ()) -> str:
        """Returns the hexadecimal SHA-256 of the names, types, shapes and bytes of tensors.

        Args:
            names: Names of the tensors; empty takes all.
        """
        digest = hashlib.sha256()
        for name, value in vars(self).items():
            if names and name not in names:
                continue
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.contiguous().cpu().numpy())
        return digest.hexdigest()

    @classmethod
    def join(cls, parts: Sequence[Episodes]) -> Episodes:
        """Joins the episodes of successive plans to one set."""
        tensors = {name: [vars(part)[name] for part in parts] for name in vars(parts[0])}
        for index, of in (("plan", "size"), ("goal", "field_at"), ("cells_at", "cells"), ("field_at", "field")):
            tensors[index] = _shifted(tensors[index], [len(vars(part)[of]) for part in parts])
        corners = [len(part.way) for part in parts]
        tensors["way_at"] = [parts[0].way_at[:1], *_shifted([part.way_at[1:] for part in parts], corners)]
        return cls(**{name: torch.cat(values) for name, values in tensors.items()})

    def save(self, path: Path, scenes: EpisodeConfig, split: Split, seed: int) -> None:
        """Writes a file that `load` reads. A failed write leaves no incomplete file at `path`.

        Args:
            path: File to write.
            scenes: Distribution from which the episodes were generated, for the metadata.
            split: Split of the episodes, for the metadata.
            seed: Seed of the episodes, for the metadata.
        """
        from safetensors.torch import save_file

        metadata = {"version": str(VERSION), "split": split, "seed": str(seed), "scenes": json.dumps(asdict(scenes))}
        metadata["sha256"] = self.digest()
        part = path.with_suffix(".part")
        save_file({name: value.contiguous().cpu() for name, value in vars(self).items()}, part, metadata)
        part.rename(path)

    @classmethod
    def load(cls, path: Path) -> tuple[Episodes, dict[str, Any]]:
        """Reads a file of episodes.

        Returns:
            The episodes, and the metadata: version, split, seed, scenes (fields of `EpisodeConfig`) and sha256.

        Raises:
            ConfigError: The file is missing, is not a file of episodes, has another version, or is damaged.
        """
        from safetensors import SafetensorError, safe_open

        name = shortened(path, SHOWN_PATH)
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{name} cannot be read: {shortened(error, 120)}. Name a file that `powerband train sketchnav "
                f"episodes` has written."
            ) from None
        if metadata.get("version") != str(VERSION):
            raise ConfigError(
                f"{name} has format version {shortened(metadata.get('version', 'unknown'))}, but powerband reads "
                f"version {VERSION}. Generate the episodes again with `powerband train sketchnav episodes`."
            )
        if tensors.keys() != cls.__dataclass_fields__.keys():
            raise ConfigError(
                f"{name} is not a file of episodes: it contains {some_of(sorted(tensors), 3)}. Name a file that "
                f"`powerband train sketchnav episodes` has written."
            )
        episodes = cls(**tensors)
        if "sha256" in metadata and metadata["sha256"] != episodes.digest():  # early files have no digest
            raise ConfigError(
                f"{name} is damaged: its digest has changed. Generate the episodes again with `powerband train "
                f"sketchnav episodes`."
            )
        return episodes, {**metadata, "scenes": json.loads(metadata["scenes"])}


def load_episode_file(path: Path) -> tuple[Episodes, dict[str, Any]]:
    """Reads the file of training episodes that the option `episode_file` names; returns the same as `Episodes.load`.

    Raises:
        ConfigError: The file is not a valid file of episodes.
    """
    try:
        return Episodes.load(path)
    except ValueError as error:
        raise ConfigError(f"episode_file: {error}") from None


def _shifted(indices: list[Tensor], sizes: list[int]) -> list[Tensor]:
    """Adds to the indices of each part the sizes of all parts before it."""
    return [index + sum(sizes[:number]) for number, index in enumerate(indices)]
