"""StopRequest: requests to end a run early, from a signal, a call of `Run.stop` or the time limit."""

from __future__ import annotations

import signal
import time
from types import FrameType

SIGNALS = tuple(number for number in signal.Signals if number.name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"))
"""Signals after which a run saves and ends. Schedulers announce a preemption with SIGTERM or SIGUSR1."""

REPEATED_S = 1.0
"""Seconds within which one Ctrl-C may arrive twice: from the terminal, and from the launcher, which forwards it."""


class StopRequest:
    """Collects the requests of one rank to end the run early: a signal, a call of `request`, or the time limit.

    All ranks then agree, and end the run at the same iteration with the same exit status.

    Attributes:
        received_signal: Name of the signal that ends the run, received here or on another rank; "" without a signal.
        reason: Reason for the end of the run; "" until the ranks have agreed.

    Args:
        time_limit_s: Largest number of seconds of training; 0 for no limit.
    """

    def __init__(self, time_limit_s: float) -> None:
        self.time_limit_s = time_limit_s
        self.received_signal = self.reason = self._requested = ""
        self._interrupted_at: float | None = None
        self._previous_handlers: dict[signal.Signals, object] = {}

    def handle_signals(self) -> None:
        """Installs handlers for SIGTERM, SIGINT, SIGUSR1 and SIGHUP, which request the end of the run.

        A second SIGINT, as by a second Ctrl-C, raises KeyboardInterrupt at once.
        """
        for number in SIGNALS:
            if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                self._previous_handlers[number] = signal.signal(number, self._on_signal)

    def restore_handlers(self) -> None:
        """Restores the previous signal handlers."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]

    def request(self, reason: str) -> None:
        """Requests the end of the run. If there are several requests, the reason of the first is reported."""
        self._requested = self._requested or reason

    def pending(self, elapsed_s: float) -> bool:
        """True if this rank requests the end after `elapsed_s` seconds of training."""
        over = self.time_limit_s > 0 and elapsed_s >= self.time_limit_s
        return bool(self.received_signal or self._requested) or over

    def own_reason(self) -> tuple[str, str]:
        """Requests of this rank alone, before the ranks agree.

        Returns:
            (name of the signal that this rank received, reason passed to `request`); "" for each that is missing.
        """
        return self.received_signal, self._requested

    def accept(self, reasons: list[tuple[str, str]]) -> None:
        """Sets the reason for the end after the ranks have agreed to end.

        Args:
            reasons: Result of `own_reason` of every rank. If all texts are empty, the time limit is the reason.
        """
        if self.reason:
            return
        signals = {rank: name for rank, (name, _) in enumerate(reasons) if name}
        requests = [request for _, request in reasons if request]
        if signals:
            rank, self.received_signal = next(iter(signals.items()))
            place = "" if len(signals) == len(reasons) else f" to rank {rank}"
            self.reason = f"{self.received_signal}{place}: saved"
        else:
            self.reason = requests[0] if requests else f"time limit of {self.time_limit_s:g} s reached"

    @property
    def exit_status(self) -> int:
        """128 + the number of the signal that ended the run, as a shell reports it; 0 without a signal."""
        return 128 + signal.Signals[self.received_signal] if self.received_signal else 0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # The others come several times: from a scheduler, from the launcher, and from the kernel if the launcher dies.
        if number == signal.SIGINT:
            now, before = time.monotonic(), self._interrupted_at
            if before is not None and now - before > REPEATED_S:
                raise KeyboardInterrupt
            self._interrupted_at = now if before is None else before
        self.received_signal = self.received_signal or signal.Signals(number).name
