"""Idle share: finds the share of the time in which the learner does not compute, and its largest cause.

An account is a category of time of the phase clock, such as env, update or log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from powerband.core.ranks.ranks import Ranks
from powerband.core.telemetry.phase_clock import PhaseTimes

SHARE_PREFIX = "perf/share/"
IDLE_PREFIX = "perf/idle/"
LEARNER_ACCOUNTS = ("act", "sample", "returns", "update")
"""Accounts (time categories) in which the learner computes."""
CAUSES = {
    "env": "env-bound",
    "env_wait": "env-bound",
    "data_wait": "data-wait",
    "eval": "eval-blocking",
    "save": "save-blocking",
    "log": "log-blocking",
    "collectives": "comm-bound",
}
"""Account (time category) -> cause of idle time that ``powerband profile`` reports. Other accounts keep their names."""
STRAGGLER = "rank-straggler"
"""Cause of the extra time in collectives, compared with the rank that spends least in them and waits for no other."""


def causes_of_idleness(phases: PhaseTimes, ranks: Ranks) -> dict[str, float]:
    """Computes the shares of the wall time in which the learner does not compute, by cause. All ranks must call it.

    On CUDA the shares are measured on the stream, so that host time which overlaps device work does not count.

    Args:
        phases: Times of one interval by account (time category).
        ranks: Ranks over which the shares are averaged.

    Returns:
        Metric ``perf/idle/<cause>``, such as ``perf/idle/env-bound`` -> share of the wall time, 0 to 1.
    """
    spent = phases.device if phases.device else phases.host
    rest = max(0.0, phases.wall_s - sum(spent.values()))
    waits = {name: seconds for name, seconds in {**spent, "other": spent.get("other", 0.0) + rest}.items() if seconds}
    own = {name: seconds / max(phases.wall_s, 1e-9) for name, seconds in waits.items() if name not in LEARNER_ACCOUNTS}
    shares = ranks.gather(own)
    causes: dict[str, float] = {}
    for name in {name for each in shares for name in each}:
        mean = sum(each.get(name, 0.0) for each in shares) / len(shares)
        if name == "collectives" and len(shares) > 1:
            least = min(each.get(name, 0.0) for each in shares)
            causes[STRAGGLER] = causes.get(STRAGGLER, 0.0) + mean - least
            mean = least
        cause = CAUSES.get(name, name)
        causes[cause] = causes.get(cause, 0.0) + mean
    return {f"{IDLE_PREFIX}{cause}": share for cause, share in sorted(causes.items())}


def account_shares(line: Mapping[str, Any], prefix: str = SHARE_PREFIX) -> dict[str, float]:
    """Reads the shares of the wall time from one line of metrics.

    Args:
        line: Metrics of one log interval by name.
        prefix: Start of the metric names to read.

    Returns:
        Rest of the name, by default an account (time category such as env) -> share of the wall time, 0 to 1.
    """
    return {
        tag.removeprefix(prefix): float(value)
        for tag, value in line.items()
        if tag.startswith(prefix) and isinstance(value, int | float)
    }


def idle_share(line: Mapping[str, Any]) -> tuple[float, str] | None:
    """The share of the wall time in which the learner does not compute, and its largest cause.

    Uses the metrics ``perf/idle/<cause>`` if the run logs them, otherwise the shares of all accounts
    (time categories) outside of `LEARNER_ACCOUNTS`.

    Args:
        line: Metrics of one log interval by name.

    Returns:
        (share, 0 to 1; name of the cause or account), or None if `line` has no such metrics.
    """
    causes = account_shares(line, IDLE_PREFIX)
    if not causes:
        accounts = account_shares(line)
        if not accounts:
            return None
        causes = {name: share for name, share in accounts.items() if name not in LEARNER_ACCOUNTS}
    if not causes:
        return 0.0, ""
    return min(sum(causes.values()), 1.0), max(causes, key=causes.__getitem__)


def largest(line: Mapping[str, Any]) -> tuple[str, float]:
    """The account (time category such as env) with the largest share of the wall time in a line of metrics.

    Returns:
        (account; its share, 0 to 1), or ("", 0) without measurements.
    """
    accounts = account_shares(line)
    name = max(accounts, key=accounts.__getitem__, default="")
    return name, accounts.get(name, 0.0)
