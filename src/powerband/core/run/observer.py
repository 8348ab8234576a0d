"""RunObserver: interface of a measurement that a run calls at certain points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from powerband.core.run.run import Run


class RunObserver(Protocol):
    """Interface of a measurement that a run calls at certain points. It must not change the training."""

    def on_tick(self, run: Run) -> None:
        """Called at the end of each iteration, outside of all ``with run.clock(name)`` blocks."""

    def on_batch(self, batch: Any) -> None:
        """Called with the batch of each update."""

    def on_average(self, flat: Tensor) -> None:
        """Called with each flat tensor (P,), P numbers, before the ranks average it.

        That is the gradient of an update, or the mean or the variance of new rows of running statistics.
        """
