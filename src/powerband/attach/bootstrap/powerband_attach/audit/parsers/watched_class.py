"""Watched class: tracks the reads of attributes through the class, so that objects and their type stay the same.

A class gets a ``__getattribute__`` and a ``__setattr__``. Its objects are no wrappers: ``type(x)``, pickling and ``==``
work as before, copies are tracked too, and so are objects in worker processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from powerband_attach.audit import reads

_watched: dict[type, Callable[[Any, str], Any]] = {}


def watch(cls: type, option_of: Callable[[Any, str], Any], holder_of: Callable[[Any], tuple[str, str]]) -> None:
    """Tracks the attributes of the objects of a class.

    Args:
        cls: A class that Python code defines.
        option_of: Function of an object and an attribute; returns the (parser, name) pairs of the options.
        holder_of: Function of an object; returns (parser, prefix of the names of its options).
    """
    if cls in _watched:
        return
    _watched[cls] = option_of
    read: Any = cls.__getattribute__
    write: Any = cls.__setattr__

    def __getattribute__(self: Any, name: str) -> Any:
        value = read(self, name)
        if name == "__dict__":
            reads.note_bulk(*holder_of(self), how="all attributes")
        elif name[:2] != "__":
            for parser, option in option_of(self, name):
                reads.note(parser, option)
        return value

    def __setattr__(self: Any, name: str, value: Any) -> None:
        for parser, option in option_of(self, name):
            reads.note_overwritten(parser, option)
        write(self, name, value)

    with contextlib.suppress(TypeError):  # a class of C code
        cls.__getattribute__ = __getattribute__  # type: ignore[method-assign,assignment]
        cls.__setattr__ = __setattr__  # type: ignore[method-assign,assignment]
