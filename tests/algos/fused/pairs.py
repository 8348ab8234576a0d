"""Pairs of the same off-policy learner with PyTorch and with compiled functions, and batches for them."""

from __future__ import annotations

from typing import Any

import torch

from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec

SPEC = EnvSpec(
    TensorSpec((5,)), TensorSpec((3,)), low=torch.tensor([0.0, -1.0, -2.0]), high=torch.tensor([4.0, 1.0, 2.0])
)
ROWS = 27  # neither rows nor widths are multiples of the blocks of the matrix product


def make_learner(learner: Any, settings: type, fused: bool, precision: str = "fp32", **options: Any) -> Any:
    """Creates a learner of the class `learner` with the settings class `settings`, always with equal weights."""
    torch.manual_seed(0)
    chosen = settings(**{"hidden": (30, 17), "fused": fused, **options})
    return learner(SPEC, chosen, RankContext.single(precision=precision))


def make_pair(learner: Any, settings: type, **options: Any) -> tuple[Any, Any]:
    """Creates the same learner with PyTorch and with compiled functions."""
    plain, fused = (make_learner(learner, settings, each, **options) for each in (False, True))
    assert plain.fused is None and fused.fused is not None
    return plain, fused


def batch(seed: int = 0, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Draws a batch of `ROWS` transitions; observations have the standard deviation `scale`."""
    draw = torch.Generator().manual_seed(seed)
    action = SPEC.low + (SPEC.high - SPEC.low) * torch.rand(ROWS, 3, generator=draw)
    obs, next_obs = scale * torch.randn(2, ROWS, 5, generator=draw)
    return {
        "obs": obs,
        "action": action,
        "reward": torch.randn(ROWS, generator=draw),
        "terminated": torch.rand(ROWS, generator=draw) < 0.2,
        "next_obs": next_obs,
    }
