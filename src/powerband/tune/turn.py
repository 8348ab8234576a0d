"""Turn: one knob, the value it is advised to take, and the rate that is predicted of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WORTH = 1.03
"""A smaller gain is not advised: it drowns in the noise of a short run."""


@dataclass(frozen=True)
class Advice:
    """One turn of a knob.

    Attributes:
        knob, now, value: What to change, from what, to what.
        steps_per_s: Predicted environment steps a second over all ranks.
        gain: The same over the measured rate; 1 or below where it gains nothing.
        why: One phrase.
        learning: It changes what is learnt (sizes, ratio), not only how fast.
        probed: A short run with this setting was measured.
        config: The configuration with it, None where it cannot be set alone or gains nothing.
    """

    knob: str
    now: Any
    value: Any
    steps_per_s: float
    gain: float
    why: str
    learning: bool = False
    probed: bool = False
    config: Any = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the predicted gain is a factor on the rate."""
        return {
            "knob": self.knob,
            "now": self.now,
            "value": self.value,
            "predicted_steps_per_s": self.steps_per_s,
            "predicted_gain": self.gain,
            "why": self.why,
            "changes_learning": self.learning,
            "probed": self.probed,
        }

    def __str__(self) -> str:
        tags = ["changes learning"] * self.learning + ["from a short run"] * self.probed
        why = f"{self.why} ({', '.join(tags)})" if tags else self.why
        return f"{self.knob:<22}{self.now!s:>10}{self.value!s:>10}{self.steps_per_s:>12,.0f}{self.gain:>7.2f}x  {why}"
