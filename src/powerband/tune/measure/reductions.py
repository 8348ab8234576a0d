"""AllReduceCounter: counts the all-reduces of a learner and their bytes, even if one rank does not communicate."""

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
        """Sets `count` and `size` to 0."""
        self.count = self.size = 0

    def figures(self, factor: float) -> dict[str, float]:
        """Returns `count` and `size` times `factor`, by the names of the fields of `WindowFacts`."""
        return {"reductions": self.count * factor, "reduced_bytes": self.size * factor}

    def count_call(self, call: Callable[[], object]) -> AllReduceCounter:
        """Clears the counters, makes a call and returns self with the all-reduces of that call."""
        self.clear()
        call()
        return self

    def add(self, flat: Tensor) -> None:
        """Counts one all-reduce of the tensor `flat`."""
        self.count += 1
        self.size += flat.nbytes
