"""Profile: measures where the time of each process of a script goes."""

from __future__ import annotations


def begin() -> None:
    """Starts the measurement of this process."""
