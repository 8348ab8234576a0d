"""Errors that the command line prints as a message without a traceback: those of the user, and signals."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class ConfigError(ValueError):
    """A setting, an input file or an option is invalid. The message states the value, the limit and the fix."""


class Interrupted(KeyboardInterrupt):
    """A signal ended a command in which a measured run had taken over the handling of signals.

    Args:
        signal_name: Name of the signal, such as SIGTERM.
    """

    def __init__(self, signal_name: str) -> None:
        super().__init__(signal_name)
        self.signal_name = signal_name


@contextlib.contextmanager
def exit_on_signal() -> Iterator[list[signal.Signals]]:
    """Context in which SIGTERM and SIGHUP raise `Interrupted`, so that the processes of a command end before it.

    Only the first signal raises, because another one would interrupt that end. The context belongs to the main thread.

    Yields:
        The signals that have arrived.
    """
    received: list[signal.Signals] = []

    def leave(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        if len(received) == 1:
            raise Interrupted(received[0].name)

    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]  # nohup
    before = {each: signal.signal(each, leave) for each in numbers}
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
