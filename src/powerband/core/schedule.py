"""When things fall due: updates, by an exact integer debt; log, evaluation and save, by cadences; annealing."""

from __future__ import annotations


class UpdateSchedule:
    """The owner of the update ratio: `updates_per_interval` updates each time `update_interval` transitions came in.

    Args:
        update_interval: Transitions, summed over ranks, above 0.
        updates_per_interval: Updates that then fall due; None means as many, one a transition.
        warmup: Transitions that enter replay before counting starts.

    Raises:
        ValueError: A number out of range.
    """

    def __init__(self, update_interval: int, updates_per_interval: int | None = None, warmup: int = 0) -> None:
        if update_interval < 1:
            raise ValueError(
                f"update_interval={update_interval} is below 1: give transitions between updates, 1 or more."
            )
        if updates_per_interval is not None and updates_per_interval < 0:
            raise ValueError(f"updates_per_interval={updates_per_interval} is below 0: give 0 or more updates.")
        if warmup < 0:
            raise ValueError(f"warmup={warmup} is below 0: give 0 or more transitions.")
        self.update_interval = update_interval
        self.updates_per_interval = update_interval if updates_per_interval is None else updates_per_interval
        self.warmup = warmup
        self._still_warming, self._waiting = warmup, 0

    @property
    def ratio(self) -> float:
        """Updates for each transition."""
        return self.updates_per_interval / self.update_interval

    def due(self, transitions: int) -> int:
        """Number of updates that fall due as `transitions` more enter replay (over all ranks)."""
        skipped = min(self._still_warming, transitions)
        self._still_warming -= skipped
        intervals, self._waiting = divmod(self._waiting + transitions - skipped, self.update_interval)
        return intervals * self.updates_per_interval

    def state_dict(self) -> dict:
        return {"still_warming": self._still_warming, "waiting": self._waiting}

    def load_state_dict(self, state: dict) -> None:
        self._still_warming, self._waiting = state["still_warming"], state["waiting"]


class Every:
    """True once each time a counter crosses a multiple of `interval`; never where that is 0."""

    def __init__(self, interval: int) -> None:
        if interval < 0:
            raise ValueError(f"interval {interval} is below 0: give 0 for never, or a number of steps.")
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
