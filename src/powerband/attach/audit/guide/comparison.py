"""Comparison: the figures of short runs with and without one option, and their ratio with its interval."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any

MIN_PAIRS, MAX_PAIRS = 3, 8
"""Least number of pairs for an interval, and number after which a comparison ends."""
STUDENT_T = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Number of pairs -> factor of the 95 % interval of their mean."""


@dataclass(frozen=True)
class Pair:
    """What a comparison runs.

    Attributes:
        before: Arguments without the option, or with its earlier value.
        after: Arguments with the option.
        path: Qualified name of the setting.
        stage_words: Arguments of both runs that select the stage.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    path: str
    stage_words: tuple[str, ...] = ()

    def inverted(self) -> Pair:
        """Returns the pair with both sides exchanged."""
        return replace(self, before=self.after, after=self.before)


@dataclass(frozen=True)
class Sample:
    """Figures of one short run.

    Attributes:
        rate: Environment steps per second; updates per second for recorded data.
        updates_per_s: Updates per second.
        updates_per_step: Updates per environment step, as the configuration schedules them or else as counted; None for
            recorded data.
        updates: Updates in the window.
        env_steps: Environment steps in the window.
        memory_bytes: Peak memory.
        processes: Processes of the run: ranks and simulator workers.
    """

    rate: float
    updates_per_s: float
    updates_per_step: float | None
    updates: int
    env_steps: int
    memory_bytes: int
    processes: int


@dataclass
class Comparison:
    """Result of the runs of one pair.

    Attributes:
        pair: What was run.
        before: Samples without the option.
        after: Samples with the option.
        values: Value of the setting without and with the option.
        variant: Variant of the recipe that was run; "" for its default.
        problem: Why there are no samples: ``same``, ``slow``, ``failed``, ``refused`` or "".
        message: Error of the run or the configuration.
    """

    pair: Pair
    before: list[Sample] = field(default_factory=list)
    after: list[Sample] = field(default_factory=list)
    values: tuple[Any, Any] = (None, None)
    variant: str = ""
    problem: str = ""
    message: str = ""

    def inverted(self) -> Comparison:
        """Returns the comparison with both sides exchanged."""
        pair = self.pair.inverted()
        return replace(self, pair=pair, before=self.after, after=self.before, values=self.values[::-1])

    @property
    def pairs(self) -> int:
        """Number of complete pairs."""
        return min(len(self.before), len(self.after))

    def ratio(self, figure: str, factor: float = 1.0) -> tuple[float, float, float] | None:
        """Returns (ratio with to without the option, low, high) with a 95 % interval over pairs; None if unknown.

        Args:
            figure: Name of an attribute of `Sample`.
            factor: Factor of the ratio.
        """
        read = attrgetter(figure)
        both = [(read(a), read(b)) for a, b in zip(self.after, self.before, strict=False)]
        logs = [math.log(a / b * factor) for a, b in both if a and b and a > 0 and b > 0]
        if not logs:
            return None
        middle = statistics.fmean(logs)
        if len(logs) < MIN_PAIRS:
            return (math.exp(middle), math.exp(middle - 1), math.exp(middle + 1))
        half = STUDENT_T[min(len(logs), MAX_PAIRS)] * statistics.stdev(logs) / math.sqrt(len(logs))
        return (math.exp(middle), math.exp(middle - half), math.exp(middle + half))

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as a JSON value."""
        return {
            "before": list(self.pair.before),
            "after": list(self.pair.after),
            "setting": self.pair.path,
            "values": [_json(value) for value in self.values],
            "variant": self.variant,
            "pairs": self.pairs,
            "runs_before": [asdict(each) for each in self.before],
            "runs_after": [asdict(each) for each in self.after],
            "problem": self.problem,
            "message": self.message,
        }


def _json(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)
