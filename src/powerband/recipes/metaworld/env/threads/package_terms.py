"""Functions that translated source of the metaworld package calls (`translation`), compiled by numba.

They have the names and the keyword arguments of the package's own functions. Arithmetic of vectors has functions too:
numba would compile ``a - b`` of arrays to a function without a module, which its disk cache cannot load. No two inner
functions have the same name, because numba links the code of several cached tasks by names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from powerband.recipes.metaworld.env.threads.observation import quaternion
from powerband.recipes.metaworld.env.threads.reward_terms import gaussian, hamacher, long_tail, through


def _has_vector(*arguments: Any) -> bool:
    """Returns True if one of several types of numba is that of a vector."""
    return any(isinstance(argument, types.Array) for argument in arguments)


def size(a: Any, b: Any) -> int:
    """Returns the number of entries of `a` or `b`, of which one at least is a vector."""
    return int(np.size(a) if np.ndim(a) else np.size(b))


@overload(size)
def _size(a, b):
    def size_of_first(a, b):
        return a.shape[0]

    def size_of_second(a, b):
        return b.shape[0]

    return size_of_first if _has_vector(a) else size_of_second


def entry(x: Any, index: int) -> Any:
    """Returns an entry of a vector `x`, or the number `x`."""
    return x[index] if np.ndim(x) else x


@overload(entry)
def _entry(x, index):
    def entry_of_vector(x, index):
        return x[index]

    def entry_of_number(x, index):
        return x

    return entry_of_vector if _has_vector(x) else entry_of_number


def add(a: Any, b: Any) -> Any:
    """Returns the sum of two numbers or vectors."""
    return a + b


@overload(add)
def _add(a, b):
    def add_numbers(a, b):
        return a + b

    def add_vectors(a, b):
        result = np.empty(size(a, b))
        for index in range(result.shape[0]):
            result[index] = entry(a, index) + entry(b, index)
        return result

    return add_vectors if _has_vector(a, b) else add_numbers


def subtract(a: Any, b: Any) -> Any:
    """Returns the difference of two numbers or vectors."""
    return a - b


@overload(subtract)
def _subtract(a, b):
    def subtract_numbers(a, b):
        return a - b

    def subtract_vectors(a, b):
        result = np.empty(size(a, b))
        for index in range(result.shape[0]):
            result[index] = entry(a, index) - entry(b, index)
        return result

    return subtract_vectors if _has_vector(a, b) else subtract_numbers


def multiply(a: Any, b: Any) -> Any:
    """Returns the product of two numbers or vectors."""
    return a * b


@overload(multiply)
def _multiply(a, b):
    def multiply_numbers(a, b):
        return a * b

    def multiply_vectors(a, b):
        result = np.empty(size(a, b))
        for index in range(result.shape[0]):
            result[index] = entry(a, index) * entry(b, index)
        return result

    return multiply_vectors if _has_vector(a, b) else multiply_numbers


def divide(a: Any, b: Any) -> Any:
    """Returns the quotient of two numbers or vectors."""
    return a / b


@overload(divide)
def _divide(a, b):
    def divide_numbers(a, b):
        return a / b

    def divide_vectors(a, b):
        result = np.empty(size(a, b))
        for index in range(result.shape[0]):
            result[index] = entry(a, index) / entry(b, index)
        return result

    return divide_vectors if _has_vector(a, b) else divide_numbers


def absolute(x: Any) -> Any:
    """Returns the absolute value of each entry of a vector `x`, or of a number `x`."""
    return np.abs(x)


@overload(absolute)
def _absolute(x):
    def absolute_of_number(x):
        return abs(x)

    def absolute_of_vector(x):
        result = np.empty(x.shape[0])
        for index in range(x.shape[0]):
            result[index] = abs(x[index])
        return result

    return absolute_of_vector if _has_vector(x) else absolute_of_number


def norm(x: Any) -> Any:
    """Returns the Euclidean length of a vector `x`, or the absolute value of a number `x`."""
    return np.linalg.norm(x)


@overload(norm)
def _norm(x):
    def norm_of_number(x):
        return abs(x)

    def norm_of_vector(x):
        total = 0.0
        for index in range(x.shape[0]):
            total += x[index] * x[index]
        return np.sqrt(total)

    return norm_of_vector if _has_vector(x) else norm_of_number


def hstack(parts: Any) -> Any:
    """Returns the vector that consists of `parts`, a tuple of vectors or of numbers."""
    return np.hstack(parts)


@overload(hstack)
def _hstack(parts):
    def hstack_vectors(parts):
        return np.concatenate(parts)

    def hstack_numbers(parts):
        return np.array(parts)

    return hstack_vectors if _has_vector(parts[0]) else hstack_numbers


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
