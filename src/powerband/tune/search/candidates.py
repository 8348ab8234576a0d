"""Candidate: holds a setting that the search considers, with its predicted and measured rates."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from powerband.tune.search.space import Setting


@dataclass
class Candidate:
    """A setting (knob -> value) with its rates.

    Attributes:
        setting: Knobs that differ from the present setting; empty for the present setting.
        parts: Alternatives that the setting combines, at most one per `Axis` of the search space.
        predicted: Environment steps per second that the model predicts.
        rates: Measured environment steps per second, one per run.
        learning: Whether the setting changes what is learned.
    """

    setting: Setting
    parts: tuple[Setting, ...] = ()
    predicted: float = 0.0
    rates: list[float] = field(default_factory=list)
    learning: bool = False

    @property
    def measured(self) -> float:
        """Median of the measured rates; 0 if there are none."""
        return statistics.median(self.rates) if self.rates else 0.0


def key(setting: Setting) -> tuple:
    """Returns a setting as a hashable key."""
    return tuple(sorted(setting.items()))


def as_command_line(setting: Setting) -> str:
    """Formats a setting as command line arguments."""
    texts = {knob: f"{value:.4g}" if isinstance(value, float) else value for knob, value in setting.items()}
    return " ".join(f"{knob}={text}" for knob, text in texts.items()) or "present setting"
