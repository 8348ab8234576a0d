"""Idle share: the part of an interval in which the learner does not compute, and the account that takes most of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHARE = "perf/share/"
IDLE = "perf/idle/"
LEARNING = ("act", "sample", "returns", "update")
"""Accounts in which the learner computes."""


def shares(line: Mapping[str, Any], prefix: str = SHARE) -> dict[str, float]:
    """Account -> share of the wall time, 0 to 1, of one line of metrics."""
    return {
        tag.removeprefix(prefix): float(value)
        for tag, value in line.items()
        if tag.startswith(prefix) and isinstance(value, int | float)
    }


def idle(line: Mapping[str, Any]) -> tuple[float, str] | None:
    """(share of the wall time, 0 to 1, in which the learner waits; what for), None where nothing was measured.

    Where a run logs ``perf/idle/<cause>``, those figures (of the device) speak; else what the loop's own accounts
    leave to `LEARNING`.
    """
    causes = shares(line, IDLE)
    if not causes:
        accounts = shares(line)
        if not accounts:
            return None
        causes = {name: share for name, share in accounts.items() if name not in LEARNING}
    if not causes:
        return 0.0, ""
    return min(sum(causes.values()), 1.0), max(causes, key=causes.get)


def largest(line: Mapping[str, Any]) -> tuple[str, float]:
    """The account with the largest share, and that share; ("", 0) where nothing was measured."""
    accounts = shares(line)
    name = max(accounts, key=accounts.get, default="")
    return name, accounts.get(name, 0.0)
