"""Idle share: the part of an interval in which the learner does not compute, and the account that takes most of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from powerband.core.ranks.ranks import Ranks
from powerband.core.telemetry.phase_clock import PhaseTimes

SHARE_PREFIX = "perf/share/"
IDLE_PREFIX = "perf/idle/"
LEARNER_ACCOUNTS = ("act", "sample", "returns", "update")
"""Accounts in which the learner computes."""
CAUSES = {
    "env": "env-bound",
    "env_wait": "env-bound",
    "data_wait": "data-wait",
    "eval": "eval-blocking",
    "save": "save-blocking",
    "log": "log-blocking",
    "collectives": "comm-bound",
}
"""Account -> the cause that `profile` names when it binds; other accounts decide no cause and keep their names."""
STRAGGLER = "rank-straggler"
"""Cause of the time in collectives beyond that of the rank that spends least in them: nobody is waited for there."""


def causes_of_idleness(phases: PhaseTimes, ranks: Ranks) -> dict[str, float]:
    """``perf/idle/<cause>``: shares of the wall time in which the learner does not compute, means over ranks.

    On CUDA the shares are those of the stream: from the moment at which earlier work has ended until the account
    ends, so that waiting which the device does not notice is none. A collective where there are several ranks.
    """
    spent = phases.device if phases.device else phases.host
    rest = max(0.0, phases.wall_s - sum(spent.values()))
    waits = {name: seconds for name, seconds in {**spent, "other": spent.get("other", 0.0) + rest}.items() if seconds}
    mine = {name: seconds / max(phases.wall_s, 1e-9) for name, seconds in waits.items() if name not in LEARNER_ACCOUNTS}
    everyone = ranks.gather(mine)
    causes: dict[str, float] = {}
    for name in {name for each in everyone for name in each}:
        mean = sum(each.get(name, 0.0) for each in everyone) / len(everyone)
        if name == "collectives" and len(everyone) > 1:
            least = min(each.get(name, 0.0) for each in everyone)
            causes[STRAGGLER] = causes.get(STRAGGLER, 0.0) + mean - least
            mean = least
        cause = CAUSES.get(name, name)
        causes[cause] = causes.get(cause, 0.0) + mean
    return {f"{IDLE_PREFIX}{cause}": share for cause, share in sorted(causes.items())}


def account_shares(line: Mapping[str, Any], prefix: str = SHARE_PREFIX) -> dict[str, float]:
    """Account -> share of the wall time, 0 to 1, of one line of metrics."""
    return {
        tag.removeprefix(prefix): float(value)
        for tag, value in line.items()
        if tag.startswith(prefix) and isinstance(value, int | float)
    }


def idle_share(line: Mapping[str, Any]) -> tuple[float, str] | None:
    """(share of the wall time, 0 to 1, in which the learner waits; what for), None where nothing was measured.

    The figures ``perf/idle/<cause>`` are used if the run logs them, else all accounts outside of `LEARNER_ACCOUNTS`.
    """
    causes = account_shares(line, IDLE_PREFIX)
    if not causes:
        accounts = account_shares(line)
        if not accounts:
            return None
        causes = {name: share for name, share in accounts.items() if name not in LEARNER_ACCOUNTS}
    if not causes:
        return 0.0, ""
    return min(sum(causes.values()), 1.0), max(causes, key=causes.get)


def largest(line: Mapping[str, Any]) -> tuple[str, float]:
    """The account with the largest share, and that share; ("", 0) where nothing was measured."""
    accounts = account_shares(line)
    name = max(accounts, key=accounts.get, default="")
    return name, accounts.get(name, 0.0)
