"""Candidate: holds a setting that the search considers, with its predicted and measured rates."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from powerband.tune.search.space import Setting


@dataclass
class Candidate:
    """A combination of changed settings that a search considers, with its predicted and measured rates.

    Attributes:
        setting: Knob (name of a setting) -> value, for the knobs that differ from the present configuration; empty for
            the present configuration itself.
        parts: Alternatives (knob -> value) that the setting combines, at most one per `Axis` of the search space.
        predicted: Environment steps per second that the throughput model predicts.
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
        """Median of the measured environment steps per second; 0 if nothing was measured."""
        return statistics.median(self.rates) if self.rates else 0.0


def key(setting: Setting) -> tuple:
    """Returns a hashable form of a setting (knob -> value): its pairs, sorted by knob."""
    return tuple(sorted(setting.items()))


def as_command_line(setting: Setting) -> str:
    """Formats a setting (knob -> value) as ``nproc=2 threads=4``; an empty setting as "present setting"."""
    texts = {knob: f"{value:.4g}" if isinstance(value, float) else value for knob, value in setting.items()}
    return " ".join(f"{knob}={text}" for knob, text in texts.items()) or "present setting"
