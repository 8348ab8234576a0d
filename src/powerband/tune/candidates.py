"""Candidates: settings that a search may choose, what is known of each, and how far apart two of them are."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from powerband.tune.space import Setting

ALIKE = 0.10
"""Predictions that differ by less do not say which setting is faster."""


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


def unlike(ranked: list[Candidate], best: int, most: int) -> list[Candidate]:
    """The `best` first of `ranked` and, up to `most`, those the model cannot tell from the first that are unlike them.

    The model's error is largest between settings far apart, so that there is more to find there than among near ones.
    """
    chosen = ranked[:best]
    alike = [each for each in ranked[best:] if each.predicted >= (1 - ALIKE) * ranked[0].predicted]
    while alike and len(chosen) < most:
        farthest = max(alike, key=lambda each: min(distance(each.setting, other.setting) for other in chosen))
        alike.remove(farthest)
        chosen.append(farthest)
    return chosen


def distance(a: Setting, b: Setting) -> float:
    """How far apart two settings are: doublings of a size, 1 for each knob that only one of them turns or a choice."""
    found = 0.0
    for knob in {*a, *b}:
        left, right = a.get(knob), b.get(knob)
        sizes = {type(left), type(right)} <= {int, float} and min(left, right) > 0
        found += abs(math.log2(left / right)) if sizes else float(left != right)
    return found
