"""RankContext: what a learner needs to know about the rank that it runs on, as one argument."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision, PrecisionName
from powerband.core.ranks.ranks import Ranks


@dataclass(frozen=True)
class RankContext:
    """Device, arithmetic, random numbers and gradient averaging of one rank.

    Attributes:
        ranks: This process and the others; owns the device and the collectives.
        precision: Floating point type of matrix products; parameters, targets and losses are float32.
        noise: Streams of random numbers of this rank.
    """

    ranks: Ranks
    precision: Precision
    noise: NoiseSource

    @classmethod
    def single(
        cls, device: torch.device | str = "cpu", precision: PrecisionName | Precision = "fp32", seed: int = 0
    ) -> RankContext:
        """A context without other ranks: for evaluation, measurements and tests."""
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
        """Replaces a flat gradient by its mean over ranks, in place."""
        return self.ranks.average_(flat)
