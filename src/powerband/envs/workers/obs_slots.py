"""Observation slots: writes the leaves of observations to shared memory, after a check of their values."""

from __future__ import annotations

from typing import Any

import numpy as np

ObsSlot = tuple[tuple[str, ...], np.ndarray, tuple[int, ...], int]
"""Place of one leaf in shared memory: its keys, its array, its shape, and the value that is stored as 0."""
KINDS = {"f": "fiub", "i": "iub", "u": "iub", "b": "iub"}
"""Kind of a stored dtype -> kinds of dtypes that an observation may have."""


def write_obs(slots: list[ObsSlot], row: int, obs: Any, check_finite: bool) -> None:
    """Copies an observation to shared memory.

    Args:
        slots: Place in shared memory of each leaf (array) of the observation.
        row: Row of the environment in the arrays.
        obs: Observation of the environment.
        check_finite: Refuse values that are not finite.

    Raises:
        ValueError: A leaf has a wrong shape, which NumPy would broadcast silently, a kind of dtype that would be
            rounded, or values that are not finite.
    """
    for slot in slots:
        slot[1][row] = _checked(slot, obs, check_finite)


def obs_matches(slots: list[ObsSlot], row: int, obs: Any) -> bool:
    """Returns True if the observation of `row` in `slots`, its places in shared memory, equals `obs` bit for bit."""
    pairs = ((slot[1][row], _checked(slot, obs, check_finite=False)) for slot in slots)
    return all(stored.tobytes() == value.astype(stored.dtype).tobytes() for stored, value in pairs)


def _checked(slot: ObsSlot, obs: Any, check_finite: bool) -> np.ndarray:
    """Returns the leaf (array) of `obs` for the place `slot`, after checks. The first discrete value becomes 0."""
    path, array, shape, start = slot
    for key in path:
        obs = obs[int(key)] if isinstance(obs, tuple) else obs[key]
    value = np.asarray(obs)
    if value.shape != shape:
        raise ValueError(f"observation {path} has shape {value.shape}, but its space has {shape}")
    if value.dtype.kind not in KINDS[array.dtype.kind]:
        raise ValueError(f"observation {path} is {value.dtype}, which cannot be stored as {array.dtype}")
    if check_finite and value.dtype.kind == "f" and not np.isfinite(value).all():
        raise ValueError(f"observation {path} has values that are not finite")
    return value - start if start else value
