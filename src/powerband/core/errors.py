"""ConfigError: the one error that the command line prints as a message without a traceback."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting, an input file or an option is invalid. The message states the value, the limit and the fix."""
