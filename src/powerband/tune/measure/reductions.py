"""AllReduceCounter: number and bytes of the all-reduces of a learner, also on one rank, which need not communicate."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class AllReduceCounter:
    """Counts all-reduces.

    Attributes:
        count: Number of all-reduces since the last `clear`.
        size: Bytes of these all-reduces.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Sets both counters to 0."""
        self.count = self.size = 0

    def figures(self, factor: float) -> dict[str, float]:
        """Returns the counters times `factor`, as fields of `WindowFacts`."""
        return {"reductions": self.count * factor, "reduced_bytes": self.size * factor}

    def count_call(self, call: Callable[[], object]) -> AllReduceCounter:
        """Clears the counters, makes a call and returns self with the all-reduces of that call."""
        self.clear()
        call()
        return self

    def add(self, flat: Tensor) -> None:
        """Counts the all-reduce of a tensor."""
        self.count += 1
        self.size += flat.nbytes
