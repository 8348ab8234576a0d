"""Functions that translated source of the metaworld package calls (`translation`), compiled by numba.

They have the names and the keyword arguments of the package's own functions. Arithmetic of vectors has functions too:
numba would compile ``a - b`` of arrays to a function without a module, which its disk cache cannot load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from powerband.recipes.metaworld.env.threads.observation import quaternion
from powerband.recipes.metaworld.env.threads.reward_terms import gaussian, hamacher, long_tail, through


def _elementwise(operate: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Returns a function of two numbers or vectors that compiled code can call, with `operate` for each entry."""

    def function(a: Any, b: Any) -> Any:
        raise NotImplementedError("only for compiled code")

    def implementation(a, b):
        if isinstance(a, types.Array) and isinstance(b, types.Array):

            def of_vectors(a, b):
                result = np.empty(a.shape[0])
                for index in range(a.shape[0]):
                    result[index] = operate(a[index], b[index])
                return result

            return of_vectors
        if isinstance(a, types.Array):

            def of_vector_and_number(a, b):
                result = np.empty(a.shape[0])
                for index in range(a.shape[0]):
                    result[index] = operate(a[index], b)
                return result

            return of_vector_and_number
        return lambda a, b: operate(a, b)

    overload(function)(implementation)
    return function


add = _elementwise(njit(lambda a, b: a + b))
subtract = _elementwise(njit(lambda a, b: a - b))
multiply = _elementwise(njit(lambda a, b: a * b))
divide = _elementwise(njit(error_model="numpy")(lambda a, b: a / b))


def absolute(x: Any) -> Any:
    """Returns the absolute value of each entry of a vector `x`, or of a number `x`."""
    return np.abs(x)


@overload(absolute)
def _absolute(x):
    if not isinstance(x, types.Array):
        return lambda x: abs(x)

    def of_vector(x):
        result = np.empty(x.shape[0])
        for index in range(x.shape[0]):
            result[index] = abs(x[index])
        return result

    return of_vector


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
