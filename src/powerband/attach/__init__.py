"""Instrumentation of training scripts that do not use powerband.

``powerband.attach()`` as the first line of a script or notebook measures this process; see `attach.in_process`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """This module, which can also be called: ``powerband.attach`` is the name of the folder and of the function."""

    def __call__(self, **options: Any) -> Any:
        """Starts to measure this process and the processes that it starts; see `in_process.attach`."""
        from powerband.attach.in_process import attach

        return attach(**options)


sys.modules[__name__].__class__ = _Callable
