"""Gradient accumulation gives the same update of an RDT in float64. test_two_ranks.py uses these helpers."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")

from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision
from powerband.core.rank_context import RankContext
from powerband.core.ranks.ranks import Ranks
from powerband.data.recorded.batch_loader import BatchLoader
from powerband.data.robot.unified_vector import ACTION_SLOTS, STATE_SLOTS, UNIFIED_DIM, slot_mask
from powerband.data.types import tree_map
from powerband.recipes.libero.nets.hashed_tokens import hash_instructions
from powerband.recipes.libero.nets.rdt import RDTShape, RDTSize
from powerband.recipes.libero.nets.rdt_policy import RDTPolicy
from powerband.recipes.libero.nets.small_vision import PatchEncoder
from powerband.recipes.libero.rdt import RDTConfig, RDTLearner

ROWS, BATCH, UPDATES, HORIZON, PIXELS = 24, 8, 4, 5, 16


def recorded_batch(rows: torch.Tensor) -> dict:
    """Returns `rows` of a random data set. Some chunks end early, so that ranks differ in their valid steps."""
    generator = torch.Generator().manual_seed(0)
    state_mask, action_mask = (slot_mask(slots).expand(ROWS, UNIFIED_DIM) for slots in (STATE_SLOTS, ACTION_SLOTS))
    data_set = {
        "obs": {
            "images": torch.randint(256, (ROWS, 2, 2, PIXELS, PIXELS, 3), dtype=torch.uint8, generator=generator),
            "image_mask": torch.rand(ROWS, 2, 2, generator=generator) < 0.8,
            "state": torch.randn(ROWS, UNIFIED_DIM, generator=generator),
            "state_mask": state_mask,
            "task": torch.randint(2, (ROWS,), generator=generator),
            "hz": torch.full((ROWS,), 20.0),
        },
        "action": torch.randn(ROWS, HORIZON, UNIFIED_DIM, generator=generator),
        "action_mask": action_mask,
        "valid": torch.arange(HORIZON) < torch.randint(1, HORIZON + 1, (ROWS, 1), generator=generator),
    }
    return tree_map(lambda leaf: leaf[rows], data_set)


def make_rank_learner(
    ranks: Ranks, gradient_accumulation_steps: int = 1, dtype: torch.dtype = torch.float64
) -> RDTLearner:
    """Returns a small RDT learner, which is the same on all ranks."""
    torch.manual_seed(0)
    tokens, token_mask = hash_instructions(["open it", "close the drawer"])
    shape = RDTShape(HORIZON, UNIFIED_DIM, 8, 2, 2, 1, tokens.shape[-1], 64)
    policy = RDTPolicy(RDTSize(32, 2, 2), shape, PatchEncoder(64)).to(dtype)
    settings = {
        "horizon": HORIZON,
        "exec_horizon": 2,
        "noise_steps": 20,
        "gradient_accumulation_steps": gradient_accumulation_steps,
    }
    config = RDTConfig(lr=1e-3, lr_warmup_updates=2, max_grad_norm=0.45, **settings)  # the norm clips some updates
    noise = NoiseSource(0, "cpu", ranks.rank)
    learner = RDTLearner(config, policy, RankContext(ranks, Precision("fp32", "cpu"), noise))
    learner.set_instructions(tokens, token_mask)
    return learner


def train_with_batch_loader(ranks: Ranks, gradient_accumulation_steps: int = 1) -> dict[str, torch.Tensor]:
    """Trains a learner on this rank; returns the indices, the losses and the final weights."""
    learner = make_rank_learner(ranks, gradient_accumulation_steps)
    batch_loader = BatchLoader(ROWS, BATCH // ranks.world_size, recorded_batch, "cpu", 0, ranks.rank, ranks.world_size)
    indices, losses = [], []
    for number in range(UPDATES):
        indices.append(batch_loader.indices(number))
        losses.append(learner.update(batch_loader.next())["losses/rdt"])
    weights = torch.cat([weight.flatten() for weight in learner.policy.parameters()]).detach()
    return {"indices": torch.stack(indices), "losses": torch.stack(losses), "weights": weights}


def test_gradient_accumulation_gives_the_same_update() -> None:
    whole, accumulated = (
        train_with_batch_loader(Ranks()),
        train_with_batch_loader(Ranks(), gradient_accumulation_steps=3),
    )
    torch.testing.assert_close(accumulated["losses"], whole["losses"], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(accumulated["weights"], whole["weights"], rtol=1e-6, atol=1e-6)
