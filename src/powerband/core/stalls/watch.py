"""StallWatch: finds out that the ranks of this machine make no progress, and which rank is the cause.

It runs in the launcher, or in a small process of its own where no launcher of powerband exists: a rank cannot watch
itself while it is stopped, or while compiled code holds Python's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from powerband.core.stalls.machines import Machines
from powerband.core.stalls.observation import BUSY_LIMIT, SLOW_BUSY_LIMIT, SLOW_PHASES, Observation, RankObserver
from powerband.core.stalls.progress import SharedPages
from powerband.core.stalls.report import StallReport

OnStall = Literal["end", "warn"]
RESTART_S = 90.0
"""Seconds in which a rank replaces simulators, after the time limit of their answer."""
MAX_POLL_S, MIN_POLL_S = 1.0, 0.2


@dataclass(frozen=True)
class Stall:
    """Ranks without progress.

    Attributes:
        cause: The rank that the others wait for; None if all wait for each other or for another machine.
        ranks: All ranks about which this machine has news.
        ends: True if the run may end; False while it may still continue by itself.
    """

    cause: Observation | None
    ranks: list[Observation]
    ends: bool

    @property
    def silent_s(self) -> float:
        """Seconds without progress of the cause, or of all."""
        return self.cause.silent_s if self.cause is not None else min(each.silent_s for each in self.ranks)


def find_stall(ranks: list[Observation], stall_s: float, patient: bool = False) -> Stall | None:
    """Decides whether ranks make no progress.

    A rank that waits for other ranks is never the cause. Of several causes, a stopped rank comes first, then the rank
    with the fewest steps, then the one that has been silent for longest.

    Args:
        ranks: All ranks about which this machine has news.
        stall_s: The setting.
        patient: True if the run has ranks about which this machine never has news. A rank that waits for one of them
            ends later than the rank that is the cause.

    Returns:
        The stall; None while the ranks make progress.
    """
    overdue = [each for each in ranks if not each.waits_for_ranks and each.overdue(stall_s)]
    if overdue:
        cause = min(overdue, key=lambda each: (not each.halted, each.progress.env_steps, -each.silent_s))
        replaces = cause.progress.phase == "env_wait" and cause.progress.patience_s > 0
        patience_s = cause.progress.patience_s + RESTART_S if replaces else 0.0
        return Stall(cause, ranks, cause.halted or cause.silent_s > patience_s)
    if not ranks or not all(each.waits_for_ranks for each in ranks):
        return None
    silent_s, complete = min(each.silent_s for each in ranks), len(ranks) >= ranks[0].progress.world_size
    slow = any(each.progress.phase in SLOW_PHASES for each in ranks)  # a rank without news may evaluate or save
    if silent_s <= (SLOW_BUSY_LIMIT if slow and not complete else 1) * stall_s:
        return None
    return Stall(None, ranks, not patient or complete or silent_s > BUSY_LIMIT * stall_s)


class StallWatch:
    """Watches the ranks of this machine until they end.

    Args:
        pages: Pages of the ranks.
        stall_s: Seconds without progress that are a stall.
        on_stall: What follows: "end" the run, or "warn" alone.
        machines: The other machines of the run; None if nothing is known about ranks without a page.
        restarts: True if ranks that have ended may be started again.
    """

    def __init__(
        self,
        pages: SharedPages,
        stall_s: float,
        on_stall: OnStall,
        machines: Machines | None = None,
        restarts: bool = False,
    ) -> None:
        self.stall_s, self.on_stall, self.machines, self.restarts = stall_s, on_stall, machines, restarts
        self.poll_s = min(MAX_POLL_S, max(MIN_POLL_S, stall_s / 10))
        self._observers = [RankObserver(pages.page(index), 2 * self.poll_s) for index in range(pages.count)]
        self._report: StallReport | None = None
        self._polled_ns = 0

    def watch(self, ended: Callable[[float], bool], before_end: Callable[[], None] | None = None) -> bool:
        """Watches until the ranks have ended.

        Args:
            ended: Waits for some seconds; True if the ranks have ended.
            before_end: Called before a stall ends the ranks; None calls nothing.

        Returns:
            True if a stall has ended the ranks.
        """
        while not ended(self.poll_s):
            if self.poll(time.perf_counter_ns()):
                if before_end is not None:
                    before_end()
                assert self._report is not None
                self._report.end()
                return True
        return False

    def start_again(self) -> None:
        """Prepares for ranks that replace those that a stall has ended."""
        self._report = None

    def poll(self, now_ns: int) -> bool:
        """Looks at all ranks once, and reports a stall. Returns True if it must end the run."""
        if now_ns - self._polled_ns > 1e9 * (3 * self.poll_s + 2):  # this process was suspended, perhaps with the ranks
            for observer in self._observers:
                observer.excuse(now_ns)
        self._polled_ns = now_ns
        ranks = [each for each in (observer.observe(now_ns) for observer in self._observers) if each is not None]
        others = [] if self.machines is None else self.machines.exchange(ranks, self.stall_s)
        stall = find_stall([*ranks, *others], self.stall_s, patient=self.machines is None) if ranks else None
        if stall is None:
            if self._report is not None:
                self._report.withdraw()
                self._report = None
            return False
        ends = stall.ends and self.on_stall == "end"
        if self._report is None:
            self._report = StallReport(stall.cause, ranks, others, stall.silent_s)
            self._report.publish(ends, self.on_stall == "end", self.restarts)
        return ends
