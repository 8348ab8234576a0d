"""JSON shape: compares values from a file that may be damaged, or come from someone else, with the expected types."""

from __future__ import annotations

from typing import Any

LARGEST = 1e100
"""Largest absolute value of a number, so that sums and products of two stay finite."""


def fits(value: Any, shape: Any) -> bool:
    """True if `value` has the types of `shape`; a dict may have more keys.

    Args:
        value: JSON value.
        shape: ``str``, ``bool``, ``int``, ``dict`` or ``float`` (any finite number); a tuple of alternatives, with
            None for null; a list with the shape of every member; or a dict of name -> shape. ``object`` fits anything.
    """
    if isinstance(shape, tuple):
        return any(fits(value, each) for each in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(each, shape[0]) for each in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(n in value and fits(value[n], each) for n, each in shape.items())
    if shape is None or shape is object:
        return shape is object or value is None
    if shape is float:
        return type(value) in (int, float) and -LARGEST < value < LARGEST  # false for NaN
    return type(value) is shape


def is_plain(value: Any, levels: int = 50) -> bool:
    """True if a JSON value is nested at most `levels` deep and has no integer beyond `LARGEST`.

    A deeper value overflows the stack of functions that follow it, and a larger integer is no floating point number.
    """
    if isinstance(value, dict | list):
        members = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(is_plain(each, levels - 1) for each in members)
    return type(value) is not int or abs(value) < LARGEST
