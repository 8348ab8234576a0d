"""RankContext: device, precision, random streams and gradient averaging of a rank, as one argument of a learner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision, PrecisionName
from powerband.core.ranks.ranks import Ranks


@dataclass(frozen=True)
class RankContext:
    """Device, precision, random streams and gradient averaging of one rank, as one argument of a learner.

    Attributes:
        ranks: Process group, with the rank, device and collective operations of this process.
        precision: Floating point type of matrix products; parameters, targets and losses are float32.
        noise: Random streams of this rank.
    """

    ranks: Ranks
    precision: Precision
    noise: NoiseSource

    @classmethod
    def single(
        cls, device: torch.device | str = "cpu", precision: PrecisionName | Precision = "fp32", seed: int = 0
    ) -> RankContext:
        """Creates a context for a single rank, for evaluation, measurements and tests."""
        device = torch.device(device)
        chosen = precision if isinstance(precision, Precision) else Precision(precision, device)
        return cls(Ranks(device=device), chosen, NoiseSource(seed, device))

    @property
    def device(self) -> torch.device:
        """Device of networks and batches."""
        return self.ranks.device

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.ranks.world_size

    def average(self, flat: Tensor) -> Tensor:
        """Replaces `flat` by its mean over ranks, in place, and returns it.

        It is a flat gradient (P,) of P parameters, or another number of an update, such as PPO's KL divergence.
        """
        return self.ranks.average_(flat)
