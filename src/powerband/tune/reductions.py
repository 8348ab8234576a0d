"""Reductions: how many all-reduces a learner asks for, and of how many bytes; also where one rank need not make any."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class Reductions:
    """Counts all-reduces.

    Attributes:
        count: All-reduces so far.
        size: Bytes of all of them.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begins anew."""
        self.count = self.size = 0

    def figures(self, factor: float) -> dict[str, float]:
        """As facts of an iteration, which is `factor` times what was counted."""
        return {"reductions": self.count * factor, "reduced_bytes": self.size * factor}

    def within(self, call: Callable[[], object]) -> Reductions:
        """Those of one call alone."""
        self.clear()
        call()
        return self

    def noting(self, average: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """`average`, with each of its calls counted."""

        def noted(flat: Tensor) -> Tensor:
            self.count += 1
            self.size += flat.nbytes
            return average(flat)

        return noted
