"""StopRequest: requests to end a run early, from a signal, a call of `Run.stop` or the time limit."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """Collects the requests of one rank to end the run early: a signal, a call of `request`, or the time limit.

    All ranks then agree, and end the run at the same iteration.

    Attributes:
        received_signal: Name of the signal that this rank received; "" without one.
        reason: Reason for the end of the run; "" until the ranks have agreed.

    Args:
        time_limit_s: Largest number of seconds of training; 0 for no limit.
    """

    def __init__(self, time_limit_s: float) -> None:
        self.time_limit_s = time_limit_s
        self.received_signal = self.reason = self._requested = ""

    def handle_signals(self) -> None:
        """Installs handlers for SIGTERM and SIGINT. A second signal raises KeyboardInterrupt."""
        self._previous_handlers = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }

    def restore_handlers(self) -> None:
        """Restores the previous signal handlers."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def request(self, reason: str) -> None:
        """Requests the end of the run. Of several reasons, the first is reported."""
        self._requested = self._requested or reason

    def pending(self, elapsed_s: float) -> bool:
        """True if this rank requests the end after `elapsed_s` seconds of training."""
        over = self.time_limit_s > 0 and elapsed_s >= self.time_limit_s
        return bool(self.received_signal or self._requested) or over

    def accept(self) -> None:
        """Sets the reason after the ranks have agreed to end. A rank without a request reports the time limit."""
        if not self.reason:
            requested = f"{self.received_signal}: saved" if self.received_signal else self._requested
            self.reason = requested or f"time limit of {self.time_limit_s:g} s reached"

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received_signal:
            raise KeyboardInterrupt
        self.received_signal = signal.Signals(number).name
