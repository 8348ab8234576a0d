"""Rank contexts for tests of learners without a run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision
from powerband.core.rank_context import RankContext
from powerband.core.ranks.ranks import Ranks


class SimulatedRanks(Ranks):
    """Ranks in one process: `average` stands for the all-reduce."""

    average: Callable[[Tensor], object]

    def average_(self, flat: Tensor) -> Tensor:
        self.average(flat)
        return flat


def simulated_context(
    average: Callable[[Tensor], object], precision: str = "fp32", seed: int = 0, rank: int = 0, world_size: int = 1
) -> RankContext:
    """A context whose gradients are averaged by a function of the test."""
    ranks = SimulatedRanks(rank=rank, world_size=world_size, device=torch.device("cpu"))
    ranks.average = average
    return RankContext(ranks, Precision(precision, "cpu"), NoiseSource(seed, "cpu", rank))
