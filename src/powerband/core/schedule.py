"""Schedules: when updates, log lines, evaluations and checkpoints are due."""

from __future__ import annotations

import math

from powerband.core.errors import ConfigError


class UpdateSchedule:
    """Counts the updates that are due: exactly `updates_per_interval` updates per `update_interval` transitions.

    An update is one optimiser step, and a transition is one environment step.

    Args:
        update_interval: Transitions after which updates become due, summed over ranks; 1 or more.
        updates_per_interval: Number of updates that become due then; None means one per transition.
        learning_starts: Transitions to collect before the first interval starts.

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(self, update_interval: int, updates_per_interval: int | None = None, learning_starts: int = 0) -> None:
        self.updates_per_interval = update_interval if updates_per_interval is None else updates_per_interval
        limits = {"update_interval": (update_interval, 1), "updates_per_interval": (self.updates_per_interval, 0)}
        for name, (value, limit) in {**limits, "learning_starts": (learning_starts, 0)}.items():
            if value < limit:
                raise ConfigError(f"{name}={value} is below {limit}. Write {name}={limit} or more.")
        self.update_interval, self.learning_starts = update_interval, learning_starts
        self._until_start, self._since_update = learning_starts, 0

    @property
    def ratio(self) -> float:
        """Updates per transition."""
        return self.updates_per_interval / self.update_interval

    def due(self, transitions: int) -> int:
        """Counts `transitions` new transitions of all ranks, and returns the number of updates that become due."""
        skipped = min(self._until_start, transitions)
        self._until_start -= skipped
        intervals, self._since_update = divmod(self._since_update + transitions - skipped, self.update_interval)
        return intervals * self.updates_per_interval

    def state_dict(self) -> dict:
        return {"still_warming": self._until_start, "waiting": self._since_update}

    def load_state_dict(self, state: dict) -> None:
        self._until_start, self._since_update = state["still_warming"], state["waiting"]


class UpdateCycle:
    """The repeating sequence of updates of a learner, such as an actor update after every second critic update.

    A CUDA graph of updates contains complete cycles, so its replay leaves the host counter `phase` unchanged.

    Attributes:
        period: Number of updates after which the sequence repeats.
        phase: Number of updates since the start of the cycle, 0 to period - 1.

    Args:
        *intervals: Interval in updates of each part that is not trained in every update, such as 2 for an actor.
    """

    def __init__(self, *intervals: int) -> None:
        self.period = math.lcm(*intervals)
        self.phase = 0

    def advance(self) -> int:
        """Counts an update and returns its number in the cycle, 1 to period."""
        number = self.phase + 1
        self.phase = number % self.period
        return number

    def restore(self, updates: int) -> None:
        """Sets the phase of a learner that has already made `updates` updates."""
        self.phase = updates % self.period


class Every:
    """Periodic trigger: `ready(counter)` returns True once after `counter` has passed each multiple of `interval`.

    If the counter passes several multiples at once, `ready` returns True once. An interval of 0 never triggers.
    """

    def __init__(self, interval: int) -> None:
        if interval < 0:
            raise ConfigError(
                f"interval={interval} is below 0. "
                "Options that end in interval need a number of steps, or 0 to disable them."
            )
        self.interval = interval
        self._crossed = 0

    def ready(self, counter: int) -> bool:
        if not self.interval or counter // self.interval == self._crossed:
            return False
        self._crossed = counter // self.interval
        return True

    def state_dict(self) -> dict:
        return {"crossed": self._crossed}

    def load_state_dict(self, state: dict) -> None:
        self._crossed = state["crossed"]
