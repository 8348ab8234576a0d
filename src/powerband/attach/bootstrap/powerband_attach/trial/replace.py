"""Replace: puts a changed function in the place of a function of a module or of a class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from powerband_attach.imports import when_imported


def replace(module: str, path: str, changed: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces a function when its module is imported. A missing function is ignored.

    Args:
        module: Name of the module.
        path: Name of the function, with its class in front for a method.
        changed: Returns the changed function for the original one.
    """

    def now(imported: Any) -> None:
        holder: Any = imported
        *parents, name = path.split(".")
        for parent in parents:
            holder = getattr(holder, parent, None)
        original = getattr(holder, name, None)
        if original is not None:
            setattr(holder, name, functools.wraps(original)(changed(original)))

    when_imported(module, now)


def bound(fn: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns the arguments of a call by name, those of ``**kwargs`` included."""
    arguments = inspect.signature(fn).bind(*args, **kwargs).arguments
    extra = arguments.pop("kwargs", {})
    return {**arguments, **extra}
