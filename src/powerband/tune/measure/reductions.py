"""AllReduceCounter: counts the all-reduces of a learner and their bytes, even if one rank does not communicate."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class AllReduceCounter:
    """Counts the all-reduces of a learner and their bytes.

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
        """Returns {"reductions": `count` times `factor`, "reduced_bytes": `size` times `factor`}.

        Args:
            factor: Such as 1 / iterations, for figures per iteration.
        """
        return {"reductions": self.count * factor, "reduced_bytes": self.size * factor}

    def count_call(self, call: Callable[[], object]) -> AllReduceCounter:
        """Counts the all-reduces of one call and returns self; earlier counts are cleared."""
        self.clear()
        call()
        return self

    def add(self, flat: Tensor) -> None:
        """Counts one all-reduce of the tensor `flat`."""
        self.count += 1
        self.size += flat.nbytes
