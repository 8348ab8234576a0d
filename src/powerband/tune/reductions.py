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
        self.count = self.size = 0

    def noting(self, average: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """`average`, with each of its calls counted."""

        def noted(flat: Tensor) -> Tensor:
            self.count += 1
            self.size += flat.nbytes
            return average(flat)

        return noted
