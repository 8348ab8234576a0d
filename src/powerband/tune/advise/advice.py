"""Advice: states one setting to change, its new value, and the predicted rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIN_GAIN = 1.03
"""Smallest advised factor on the rate; smaller gains disappear in the noise of a short run."""

LEARNING_NOT_MEASURED = (
    "Learning was not measured: settings that change what is learned may need more steps to a score, or never reach it."
)
"""Sentence that precedes every gain of such a setting whose score was not measured."""


@dataclass(frozen=True)
class Advice:
    """Advice to change one setting (knob), with the predicted rate of the changed run.

    Attributes:
        knob: Name of the setting to change.
        now: Present value.
        value: Advised value.
        steps_per_s: Predicted environment steps per second over all ranks.
        gain: Predicted rate divided by the measured rate; 1 or below if the change does not help.
        why: Reason in one phrase.
        learning: Whether the change affects what is learned (sizes, update ratio) and not only the speed.
        probed: Whether a short run measured this setting.
        config: Configuration with the change; None if the change does not help.
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
        """Returns the advice as a JSON value; ``predicted_gain`` is the predicted rate divided by the measured rate."""
        return {
            "knob": self.knob,
            "now": self.now,
            "value": self.value,
            "predicted_steps_per_s": self.steps_per_s,
            "predicted_gain": self.gain,
            "why": self.why,
            "changes_learning": self.learning,
            "learning_measured": False if self.learning else None,
            "probed": self.probed,
        }

    def __str__(self) -> str:
        why = f"{self.why} (from a short run)" if self.probed else self.why
        return f"{self.knob:<22}{self.now!s:>10}{self.value!s:>10}{self.steps_per_s:>12,.0f}{self.gain:>7.2f}x  {why}"
