"""Functions that translated source of the metaworld package calls (`translation`), compiled by numba.

They have the names and the keyword arguments of the package's own functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from powerband.recipes.metaworld.env.threads.observation import quaternion
from powerband.recipes.metaworld.env.threads.reward_terms import gaussian, hamacher, long_tail, through


def norm(x: Any) -> Any:
    """Returns the Euclidean length of a vector `x`, or the absolute value of a number `x`."""
    return np.linalg.norm(x)


@overload(norm)
def _norm(x):
    if not isinstance(x, types.Array):
        return lambda x: abs(x)

    def length(x):
        total = 0.0
        for index in range(x.shape[0]):
            total += x[index] * x[index]
        return np.sqrt(total)

    return length


def hstack(parts: Any) -> Any:
    """Returns the vector that consists of `parts`, a tuple of vectors or of numbers."""
    return np.hstack(parts)


@overload(hstack)
def _hstack(parts):
    if isinstance(parts[0], types.Array):
        return lambda parts: np.concatenate(parts)
    return lambda parts: np.array(parts)


@njit
def number(x):
    """Returns a number or a truth value `x` as a float64."""
    return 1.0 * x


@njit
def clip(x, low, high):
    """Returns the number `x`, limited to `low` .. `high`."""
    return min(max(x, low), high)


@njit
def tolerance_long_tail(x, bounds, margin):
    """Returns 1 if `x` is in `bounds`, (low, high), and less outside; 0.1 at a distance of `margin`."""
    return long_tail(x, bounds[0], bounds[1], margin)


@njit
def tolerance_gaussian(x, bounds, margin):
    """Returns 1 if `x` is in `bounds`, (low, high), and less outside; 0.1 at a distance of `margin`."""
    return gaussian(x, bounds[0], bounds[1], margin)


@njit
def hamacher_product(a, b):
    """Returns the Hamacher product of two numbers in 0 .. 1."""
    return hamacher(a, b)


@njit
def rect_prism_tolerance(curr, zero, one):
    """Returns 1 if the point `curr` is outside of a box; inside, 0 at the corner `zero` to 1 at the corner `one`."""
    return through(curr, zero, one)


@njit
def as_quat(m):
    """Returns the rotation matrix `m` (3, 3) as a unit quaternion (x, y, z, w)."""
    q = np.empty(4)
    quaternion(m, q)
    return q
