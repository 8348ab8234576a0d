"""Fields: the leaves of an observation in the slots, written after a look at what an environment really gave."""

from __future__ import annotations

from typing import Any

import numpy as np

Field = tuple[tuple[str, ...], np.ndarray, tuple[int, ...], int]
"""Keys that lead to a leaf of an observation, its slots, its shape, and the value that is stored as 0."""
KINDS = {"f": "fiub", "i": "iub", "u": "iub", "b": "iub"}
"""Kind of a stored number -> kinds that an observation may be of."""


def write(fields: list[Field], row: int, obs: Any, finite: bool) -> None:
    """Copies an observation into its slots.

    Args:
        fields: All leaves.
        row: Of the slots.
        obs: As the environment gave it.
        finite: Refuse what is not.

    Raises:
        ValueError: Another shape (it would be broadcast silently), another kind of number (it would be rounded), or
            what is not finite.
    """
    for field in fields:
        field[1][row] = _checked(field, obs, finite)


def held(fields: list[Field], row: int, obs: Any) -> bool:
    """Whether the slots hold this very observation, bit for bit."""
    pairs = ((array[row], _checked((path, array, *rest), obs, False)) for path, array, *rest in fields)
    return all(there.tobytes() == here.astype(there.dtype).tobytes() for there, here in pairs)


def _checked(field: Field, obs: Any, finite: bool) -> np.ndarray:
    """One leaf, as its slots count it."""
    path, array, shape, start = field
    for key in path:
        obs = obs[key]
    value = np.asarray(obs)
    if value.shape != shape:
        raise ValueError(f"observation {path} has shape {value.shape}, its space says {shape}")
    if value.dtype.kind not in KINDS[array.dtype.kind]:
        raise ValueError(f"observation {path} is {value.dtype}, which does not go into {array.dtype}")
    if finite and value.dtype.kind == "f" and not np.isfinite(value).all():
        raise ValueError(f"observation {path} holds what is not finite")
    return value - start if start else value
