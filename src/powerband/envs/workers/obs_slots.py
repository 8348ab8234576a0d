"""Observation slots: writes the leaves of observations to shared memory, after a check of their values."""

from __future__ import annotations

from typing import Any

import numpy as np

ObsSlot = tuple[tuple[str, ...], np.ndarray, tuple[int, ...], int]
"""Place in shared memory of one leaf (array) of an observation: its keys in the observation, the shared array of all
environments, the shape of one row, and the value that is stored as 0."""
KINDS = {"f": "fiub", "i": "iub", "u": "iub", "b": "iub"}
"""Kind of a stored dtype -> kinds of dtypes that an observation may have."""


def write_obs(slots: list[ObsSlot], row: int, obs: Any, check_finite: bool) -> None:
    """Copies the observation of one environment to shared memory, after checks.

    Args:
        slots: Place in shared memory of each leaf (array) of the observation.
        row: Row of the environment in the shared arrays.
        obs: Observation of the environment, an array or nested dict of arrays.
        check_finite: Raise an error for values that are not finite.

    Raises:
        ValueError: A leaf has a wrong shape, which NumPy would broadcast silently, a kind of dtype that would be
            rounded, or values that are not finite.
    """
    for slot in slots:
        slot[1][row] = _checked(slot, obs, check_finite)


def obs_matches(slots: list[ObsSlot], row: int, obs: Any) -> bool:
    """Returns True if the observation of one environment in shared memory equals `obs` bit for bit.

    Args:
        slots: Place in shared memory of each leaf (array) of the observation.
        row: Row of the environment in the shared arrays.
        obs: Observation to compare, an array or nested dict of arrays.
    """
    pairs = ((slot[1][row], _checked(slot, obs, check_finite=False)) for slot in slots)
    return all(stored.tobytes() == value.astype(stored.dtype).tobytes() for stored, value in pairs)


def _checked(slot: ObsSlot, obs: Any, check_finite: bool) -> np.ndarray:
    """Returns the array of `obs` that belongs to the place `slot`, after checks; discrete values are counted from 0."""
    path, array, shape, start = slot
    for key in path:
        obs = obs[int(key)] if isinstance(obs, tuple | list) else obs[key]
    value = np.asarray(obs)
    if value.shape != shape:
        raise ValueError(f"observation {path} has shape {value.shape}, but its space has {shape}")
    if value.dtype.kind not in KINDS[array.dtype.kind]:
        raise ValueError(f"observation {path} is {value.dtype}, which cannot be stored as {array.dtype}")
    if start:
        value = value - start
    if value.dtype == array.dtype:
        stored = value
    else:
        with np.errstate(over="ignore"):
            stored = value.astype(array.dtype)
        if array.dtype.kind in "iu" and not np.array_equal(stored, value):
            raise ValueError(f"observation {path} has values that {array.dtype} cannot hold")
    if check_finite and stored.dtype.kind == "f" and not np.isfinite(stored).all():
        raise ValueError(f"observation {path} has values that are not finite as {array.dtype}")
    return stored
