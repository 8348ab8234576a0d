"""Errors that the command line prints as a message without a traceback: those of the user, and signals."""

from __future__ import annotations


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
