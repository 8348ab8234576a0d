"""Candidates: settings that a search may choose, and what is known of each."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from powerband.tune.space import Setting


@dataclass
class Candidate:
    """One setting and what is known about it.

    Attributes:
        setting: Knobs that differ from the present setting; empty is the present one.
        parts: The alternative of each axis that it is made of.
        predicted: Environment steps a second by the model.
        rates: Those that were measured.
        learning: It changes what is learnt.
    """

    setting: Setting
    parts: tuple[Setting, ...] = ()
    predicted: float = 0.0
    rates: list[float] = field(default_factory=list)
    learning: bool = False

    @property
    def measured(self) -> float | None:
        """Median of the measured rates."""
        return statistics.median(self.rates) if self.rates else None


def key(setting: Setting) -> tuple:
    """`setting` as a key of a dict."""
    return tuple(sorted(setting.items()))


def as_words(setting: Setting) -> str:
    """`setting` as it would be typed."""
    texts = {knob: f"{value:.4g}" if isinstance(value, float) else value for knob, value in setting.items()}
    return " ".join(f"{knob}={text}" for knob, text in texts.items()) or "as it stands"
