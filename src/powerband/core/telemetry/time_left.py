"""TimeLeftEstimator: estimates the time for the rest of the budget from the rate of recent intervals.

Random steps before the first update take little time, so the rate begins with the updates. Evaluations and checkpoints
may have intervals in steps. Their time is then excluded from the rate, and the time of the remaining ones is added. By
the clock they take a constant share of the time, which stays in the rate.
"""

from __future__ import annotations

from collections import deque

from powerband.core.telemetry.compilation import running_time

FIRST_S = 2.0
"""Least duration of the measurement of the first rate, in seconds."""
WINDOW, WINDOW_S = 5, 20.0
"""Number of intervals, and least number of seconds, over which the rate is measured: recent, but without jumps."""


class TimeLeftEstimator:
    """Estimates the recent rate in environment steps per second, and the seconds until the budget is spent.

    Args:
        env_steps: Budget of environment steps.
        time_limit_s: Budget of seconds; 0 for no limit.
        eval_interval: Environment steps between two evaluations; 0 for none, or for evaluations by the clock.
        save_interval: Environment steps between two checkpoints; 0 for none, or for checkpoints by the clock.
    """

    def __init__(self, env_steps: int, time_limit_s: float, eval_interval: int = 0, save_interval: int = 0) -> None:
        self.env_steps, self.time_limit_s = env_steps, time_limit_s
        self.intervals = {"eval": eval_interval, "save": save_interval}
        self._recent: deque[tuple[int, float]] = deque()
        self._costs: dict[str, tuple[float, int]] = {}
        self._explores = self._learns = False

    def add(
        self,
        steps: int,
        seconds: float,
        cadence_costs: dict[str, tuple[float, int]] | None = None,
        updates: int | None = None,
    ) -> None:
        """Adds the measurements of one log interval.

        Args:
            steps: Environment steps of the interval.
            seconds: Wall time of the interval, with evaluations and checkpoints.
            cadence_costs: "eval" -> (seconds, number) of the evaluations in the interval, and "save" -> the same for
                its checkpoints. None means that there were neither.
            updates: Updates of the interval; None if they are unknown.
        """
        self._learns = self._learns or bool(updates)
        if self._learns and self._explores:
            self._explores = False
            self._recent.clear()
            return  # a part of this interval had no updates either
        self._explores = updates == 0 and not self._learns
        for name, (cost_s, count) in (cadence_costs or {}).items():
            if not self.intervals.get(name):  # by the clock: their share of the time stays as it is
                continue
            seconds -= cost_s
            before = self._costs.get(name, (0.0, 0))
            self._costs[name] = (before[0] + cost_s, before[1] + count)
        if steps > 0 and seconds > 0:
            self._recent.append((steps, seconds))
        while len(self._recent) > WINDOW and sum(part for _, part in self._recent) - self._recent[0][1] >= WINDOW_S:
            self._recent.popleft()

    @property
    def rate(self) -> float:
        """Environment steps per second, without what has an interval in steps; 0 before the first log interval."""
        seconds = sum(part for _, part in self._recent)
        return sum(steps for steps, _ in self._recent) / seconds if seconds > 0 else 0.0

    def share(self, env_steps: int, elapsed_s: float) -> float:
        """Spent share of the budget, 0 to 1: of the environment steps or of the time limit, whichever is larger.

        Args:
            env_steps: Environment steps so far.
            elapsed_s: Seconds of training so far.
        """
        spent = elapsed_s / self.time_limit_s if self.time_limit_s > 0 else 0.0
        return min(1.0, max(spent, env_steps / max(self.env_steps, 1)))

    def left_s(self, env_steps: int, elapsed_s: float) -> float | None:
        """Seconds until the budget is spent; None if neither a rate with updates nor a time limit is known.

        Args:
            env_steps: Environment steps so far.
            elapsed_s: Seconds of training so far.
        """
        limit = max(self.time_limit_s - elapsed_s, 0.0) if self.time_limit_s > 0 else None
        if not self.rate or self._explores:
            return limit
        left = max(self.env_steps - env_steps, 0) / self.rate
        for name, every in self.intervals.items():
            cost_s, count = self._costs.get(name, (0.0, 0))
            if every and count:
                left += (self.env_steps // every - env_steps // every) * cost_s / count
        return left if limit is None else min(left, limit)


class FirstRate:
    """Measures the first rate of a run, in environment steps and updates per second.

    The measurement starts one iteration after the first update, to exclude compilation.

    Attributes:
        env_steps, grad_steps: Counters at the start of the measurement.
        rate, updates: Environment steps and updates per second, after `ready` has returned True.
        seconds: Duration of the measurement so far.
    """

    def __init__(self) -> None:
        self.env_steps = self.grad_steps = 0
        self.rate = self.updates = self.seconds = 0.0
        self._since: float | None = None

    def ready(self, env_steps: int, grad_steps: int) -> bool:
        """Ends an iteration. Returns True once the measurement contains an update and has lasted two seconds.

        Args:
            env_steps: Environment steps so far, over all ranks.
            grad_steps: Updates so far.
        """
        if self._since is None:
            if not self.grad_steps and grad_steps:
                self.grad_steps = grad_steps  # the measurement starts at the end of the next step
            elif self.grad_steps:
                self.env_steps, self.grad_steps, self._since = env_steps, grad_steps, running_time()
            return False
        self.seconds = running_time() - self._since
        if self.seconds < FIRST_S or grad_steps == self.grad_steps:
            return False
        self.rate = (env_steps - self.env_steps) / self.seconds
        self.updates = (grad_steps - self.grad_steps) / self.seconds
        return True
