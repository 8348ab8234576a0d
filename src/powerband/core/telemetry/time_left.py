"""TimeLeftEstimator: how long the rest of the budget will take, from the rate of the last intervals.

Evaluations and checkpoints come at cadences of their own, so their time is taken out of the rate and put back as
often as they will still come.
"""

from __future__ import annotations

import time
from collections import deque

FIRST_S = 2.0
"""Seconds that the first rate is measured over."""
WINDOW, WINDOW_S = 5, 20.0
"""The rate is measured over this many intervals, and at least these seconds: it follows a change and does not jump."""


class TimeLeftEstimator:
    """Rate of the recent intervals, and the seconds that are left.

    Args:
        env_steps: Budget of environment steps.
        time_limit_s: Budget of seconds, 0 for none.
        eval_interval, save_interval: Environment steps between two of them, 0 for none.
    """

    def __init__(self, env_steps: int, time_limit_s: float, eval_interval: int = 0, save_interval: int = 0) -> None:
        self.env_steps, self.time_limit_s = env_steps, time_limit_s
        self.intervals = {"eval": eval_interval, "save": save_interval}
        self._recent: deque[tuple[int, float]] = deque()
        self._apart: dict[str, tuple[float, int]] = {}

    def add(self, steps: int, seconds: float, cadence_costs: dict[str, tuple[float, int]] | None = None) -> None:
        """An interval has ended.

        Args:
            steps: Environment steps in it.
            seconds: Its wall time.
            apart: "eval" and "save": seconds of it that they took, and how often they came.
        """
        for name, (took, times) in (cadence_costs or {}).items():
            seconds -= took
            before = self._apart.get(name, (0.0, 0))
            self._apart[name] = (before[0] + took, before[1] + times)
        if steps > 0 and seconds > 0:
            self._recent.append((steps, seconds))
        while len(self._recent) > WINDOW and sum(took for _, took in self._recent) - self._recent[0][1] >= WINDOW_S:
            self._recent.popleft()

    @property
    def rate(self) -> float:
        """Environment steps a second between evaluations and checkpoints; 0 while nothing is known."""
        seconds = sum(part for _, part in self._recent)
        return sum(steps for steps, _ in self._recent) / seconds if seconds > 0 else 0.0

    def share(self, env_steps: int, elapsed_s: float) -> float:
        """Share of the budget that is spent, 0 to 1."""
        spent = elapsed_s / self.time_limit_s if self.time_limit_s > 0 else 0.0
        return min(1.0, max(spent, env_steps / max(self.env_steps, 1)))

    def left_s(self, env_steps: int, elapsed_s: float) -> float | None:
        """Seconds until the budget is spent, None while no rate is known and no time limit given."""
        limit = max(self.time_limit_s - elapsed_s, 0.0) if self.time_limit_s > 0 else None
        if not self.rate:
            return limit
        left = max(self.env_steps - env_steps, 0) / self.rate
        for name, every in self.intervals.items():
            took, times = self._apart.get(name, (0.0, 0))
            if every and times:
                left += (self.env_steps // every - env_steps // every) * took / times
        return left if limit is None else min(left, limit)


class FirstRate:
    """The first rate of a run: measured from the step after the first update on, so that compiling is left out.

    Attributes:
        env_steps, grad_steps: Counters at its start.
        rate, updates: Environment steps and updates a second once `ready` has said True.
        seconds: What they were measured over.
    """

    def __init__(self) -> None:
        self.env_steps = self.grad_steps = 0
        self.rate = self.updates = self.seconds = 0.0
        self._since: float | None = None

    def ready(self, env_steps: int, grad_steps: int) -> bool:
        """Looks at the global counters after a step; True once, when FIRST_S have been measured."""
        if self._since is None:
            if not self.grad_steps and grad_steps:
                self.grad_steps = grad_steps  # the first step with updates: the clock starts with the next one's end
            elif self.grad_steps:
                self.env_steps, self.grad_steps, self._since = env_steps, grad_steps, time.perf_counter()
            return False
        self.seconds = time.perf_counter() - self._since
        if self.seconds < FIRST_S or grad_steps == self.grad_steps:
            return False
        self.rate = (env_steps - self.env_steps) / self.seconds
        self.updates = (grad_steps - self.grad_steps) / self.seconds
        return True
