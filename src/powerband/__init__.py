"""powerband finds the range in which a training run pulls best, and keeps the run in it."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports `PhaseClock` and `diagnose`, and torch with them, when they are first asked for."""
    if name == "PhaseClock":
        from powerband.core.phases import PhaseClock

        return PhaseClock
    if name == "diagnose":
        from powerband.tune.diagnose import diagnose

        return diagnose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
