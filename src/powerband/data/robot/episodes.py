"""RobotEpisodes: recorded episodes of a robot arm in memory, independent of the file format; images stay on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.robot.unified_vector import ACTION_DIM, STATE_SLOTS, slot_mask, state_vector

CAMERAS = ("agentview", "wrist")
"""Supported cameras, in the order of the camera axis of a batch."""
FIELD_WIDTHS = {"joints": 7, "eef_pos": 3, "eef_quat": 4, "action": ACTION_DIM}
"""Field of `RobotEpisodes` that is a vector -> its number of entries."""

ImageBlock = tuple[int, dict[str, np.ndarray]]
"""(first row, camera -> images (n, H, W, 3) uint8) of n consecutive rows of one episode."""


@dataclass(frozen=True, eq=False)
class RobotEpisodes:
    """Recorded episodes of a robot arm: N rows, one per step; the rows of an episode are consecutive.

    Numbers are in memory; images stay on disk until `images` is called.

    Attributes:
        joints: Joint positions (N, 7) float32 in radians.
        gripper: Gripper opening (N,) float32, 0 (closed) to 1.
        eef_pos: Position of the end effector (N, 3) float32 in metres.
        eef_quat: Rotation of the end effector (N, 4) float32, a quaternion x, y, z, w.
        action: Actions (N, 7) float32 of LIBERO's controller, executed after the observation of their row: change of
            position, change of rotation (axis times angle), gripper; each in -1..1.
        episode: Episode of each row (N,) int64, from 0.
        task: Task of each row (N,) int64, an index of `instructions`.
        instructions: Sentence that describes each task.
        hz: Actions per second.
        cameras: Names from `CAMERAS` that have images.
        images: Function that returns an iterator over all images, block by block, in the order of the rows. A block is
            (first row, camera -> images (n, H, W, 3) uint8) of n consecutive rows.
        fingerprint: Hash that identifies these episodes.
        slots: Indices of the entries (slots) that the recorded state fills in the unified vector, the state format of
            128 numbers for any robot arm. Fields without a slot, such as the joints of some datasets, have undefined
            values.

    Raises:
        ConfigError: A field has the wrong shape, or a value is not finite.
    """

    joints: Tensor
    gripper: Tensor
    eef_pos: Tensor
    eef_quat: Tensor
    action: Tensor
    episode: Tensor
    task: Tensor
    instructions: tuple[str, ...]
    hz: float
    cameras: tuple[str, ...]
    images: Callable[[], Iterator[ImageBlock]]
    fingerprint: str
    slots: tuple[int, ...] = STATE_SLOTS

    def __post_init__(self) -> None:
        for name, width in FIELD_WIDTHS.items():
            shape, expected = tuple(getattr(self, name).shape), (self.rows, width)
            if shape != expected:
                raise ConfigError(
                    f"The field {name} of {self.instructions[0]!r} has shape {shape}, not {expected}. Record "
                    f"demonstrations of one Panda arm with the controller OSC_POSE."
                )
        for name in (*FIELD_WIDTHS, "gripper"):
            finite = getattr(self, name).reshape(self.rows, -1).isfinite().all(1)
            if rows := (~finite).nonzero()[:, 0].tolist():
                episode = int(self.episode[rows[0]])
                raise ConfigError(
                    f"The demonstrations have a NaN or infinite {name} in row {rows[0]}, episode {episode}. Remove "
                    f"that episode from the data."
                )

    @property
    def rows(self) -> int:
        """Number of recorded steps."""
        return len(self.episode)

    @property
    def count(self) -> int:
        """Number of episodes."""
        return int(self.episode[-1]) + 1

    @property
    def state_mask(self) -> Tensor:
        """Mask (128,) bool of the slots of the unified vector that the state fills."""
        return slot_mask(self.slots)

    def state(self) -> Tensor:
        """Returns the states (N, len(slots)) float32: the filled slots of the unified vector, not normalised."""
        fields = (self.joints, self.gripper, self.eef_pos, self.eef_quat)
        parts = zip(*(field.split(4096) for field in fields), strict=True)  # in parts, since a vector has 128 entries
        return torch.cat([state_vector(*part)[:, list(self.slots)] for part in parts])


def concatenate_episodes(parts: Sequence[RobotEpisodes]) -> RobotEpisodes:
    """Concatenates the episodes of several sources; the tasks of each source remain different tasks.

    Raises:
        ConfigError: The sources differ in control frequency, cameras or filled slots of the state.
    """
    first = parts[0]
    for part in parts:
        for name, label in (("hz", "control frequency"), ("cameras", "cameras"), ("slots", "entries of the state")):
            value, expected = getattr(part, name), getattr(first, name)
            if value != expected:
                raise ConfigError(
                    f"The demonstrations of {part.instructions[0]!r} and {first.instructions[0]!r} differ in {label}: "
                    f"{value} and {expected}. Train on one of them, or record both with the same settings."
                )

    def images() -> Iterator[ImageBlock]:
        first_row = 0
        for part in parts:
            for row, block in part.images():
                yield first_row + row, block
            first_row += part.rows

    offsets = np.cumsum([0, *(part.count for part in parts)]).tolist()
    task_offsets = np.cumsum([0, *(len(part.instructions) for part in parts)]).tolist()
    return RobotEpisodes(
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in (*FIELD_WIDTHS, "gripper")},
        episode=torch.cat([part.episode + offset for part, offset in zip(parts, offsets, strict=False)]),
        task=torch.cat([part.task + offset for part, offset in zip(parts, task_offsets, strict=False)]),
        instructions=tuple(text for part in parts for text in part.instructions),
        hz=first.hz,
        cameras=first.cameras,
        images=images,
        fingerprint=hashlib.sha256(" ".join(part.fingerprint for part in parts).encode()).hexdigest(),
        slots=first.slots,
    )


def fingerprint_files(files: Iterable[Path], tensors: Iterable[Tensor]) -> str:
    """Computes a SHA-256 hash of the names, sizes and modification times of files, and of tensors read from them."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
