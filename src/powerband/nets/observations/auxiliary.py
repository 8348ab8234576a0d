"""AuxiliaryLosses: protocol of encoders that contribute losses of their own."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class AuxiliaryLosses(Protocol):
    """Protocol of an encoder that has losses of its own, which a learner adds to its loss."""

    def auxiliary(self, obs: Any) -> dict[str, Tensor]:
        """Computes the additional losses of the encoder.

        Args:
            obs: Observations. The encoder's last forward pass must have had the same ones.

        Returns:
            0-d losses by name, already multiplied by their weights.
        """
