"""Tried: the result of each change, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from powerband.attach.trial.change import Change
from powerband.attach.trial.gain import Gain


@dataclass(frozen=True)
class Tried:
    """A change and its realised gain.

    Attributes:
        change: The change.
        gain: Realised gain; None if no run was complete.
        rates: Iterations per second of its runs.
        error: Why the changed script failed; "" if it did not.
    """

    change: Change
    gain: Gain | None
    rates: list[float]
    error: str = ""

    @property
    def verdict(self) -> str:
        """``gain``, ``slower``, ``none`` (the interval contains 0), ``failed`` or ``unfinished``."""
        if self.error:
            return "failed"
        if self.gain is None or self.gain.low is None or self.gain.high is None:
            return "unfinished"
        if self.gain.low > 0:
            return "gain"
        return "slower" if self.gain.high < 0 else "none"

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object."""
        gain = self.gain
        return {
            "change": self.change.text,
            "name": self.change.name,
            "value": self.change.value,
            "predicted": self.change.predicted,
            "gain_at_most": self.change.at_most,
            "realised": gain.gain if gain else None,
            "interval": [gain.low, gain.high] if gain and gain.low is not None else None,
            "verdict": self.verdict,
            "numerics": self.change.numerics,
            "permanent": asdict(self.change.permanent),
            "runs": gain.runs if gain else 0,
            "rates": self.rates,
            "error": self.error,
        }

    def cells(self) -> list[str]:
        """Returns cells for the report page: change, realised gain, interval, prediction, verdict, how to keep it."""
        change, gain = self.change, self.gain
        predicted = f"{change.predicted:+.0%}" if change.predicted is not None else f"at most {change.at_most:+.0%}"
        interval = (
            f"{gain.low:+.0%} to {gain.high:+.0%}" if gain and gain.low is not None and gain.high is not None else ""
        )
        kept = "\n".join(change.permanent.lines())
        return [change.text, f"{gain.gain:+.0%}" if gain else "", interval, predicted, self.error or self.verdict, kept]

    def line(self) -> str:
        """Returns one line for the report."""
        change, gain = self.change, self.gain
        predicted = f"{change.predicted:+.0%}" if change.predicted is not None else f"at most {change.at_most:+.0%}"
        words = {"gain": "", "slower": " slower", "none": " none", "failed": "failed", "unfinished": " unfinished"}
        realised = f"{gain.gain:+.0%}" if gain else ""
        if gain and gain.low is not None and gain.high is not None:
            realised += f" [{gain.low:+.0%}, {gain.high:+.0%}]"
        note = " (changes numerical results)" if change.numerics else ""
        text = f"  {realised + words[self.verdict]:<28}predicted {predicted:<15}{change.text}{note}"
        return text + (f": {self.error}" if self.error else "")


@dataclass(frozen=True)
class TriedChanges:
    """Result of ``powerband profile --try``.

    Attributes:
        tried: Changes, the one with the largest gain first.
        unit: ``updates`` or ``env_steps``, which the rates count.
        rates: Iterations per second of the runs without a change.
        notes: Remarks, such as changes that the budget has excluded.
    """

    tried: Sequence[Tried]
    unit: str
    rates: list[float]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Returns the keys of the profile's JSON object that describe the trials."""
        return {
            "tried": [each.to_dict() for each in self.tried],
            "tried_unit": self.unit,
            "unchanged_rates": self.rates,
            "tried_notes": self.notes,
        }

    def lines(self) -> list[str]:
        """Returns the table of the report."""
        head = ["", "tried changes, gain of the rate with its 95 % interval:"] if self.tried else [""]
        return [*head, *(each.line() for each in self.tried), *(f"note: {note}" for note in self.notes)]

    def permanent_lines(self) -> list[str]:
        """Returns how to make the gains permanent, the largest first."""
        lines = []
        for each in self.tried:
            if each.verdict == "gain" and each.gain:
                lines += [f"# {each.gain.gain:+.0%}: {each.change.text}", *each.change.permanent.lines()]
        return lines or ["# No change has a gain."]


def best_first(tried: Sequence[Tried]) -> list[Tried]:
    """Sorts changes: those with a gain first, the largest gain first, failed ones last."""
    order = ("gain", "none", "slower", "unfinished", "failed")
    return sorted(tried, key=lambda each: (order.index(each.verdict), -(each.gain.gain if each.gain else 0.0)))
