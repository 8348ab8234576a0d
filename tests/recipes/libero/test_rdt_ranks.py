"""Parts of a batch are one update of an RDT, in float64. test_two_ranks.py compares ranks with the functions here."""

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


def recorded(rows: torch.Tensor) -> dict:
    """Made-up rows; episodes end early in some, so that ranks count different numbers of steps."""
    generator = torch.Generator().manual_seed(0)
    there, steps = (slot_mask(slots).expand(ROWS, UNIFIED_DIM) for slots in (STATE_SLOTS, ACTION_SLOTS))
    whole = {
        "obs": {
            "images": torch.randint(256, (ROWS, 2, 2, PIXELS, PIXELS, 3), dtype=torch.uint8, generator=generator),
            "image_mask": torch.rand(ROWS, 2, 2, generator=generator) < 0.8,
            "state": torch.randn(ROWS, UNIFIED_DIM, generator=generator),
            "state_mask": there,
            "task": torch.randint(2, (ROWS,), generator=generator),
            "hz": torch.full((ROWS,), 20.0),
        },
        "action": torch.randn(ROWS, HORIZON, UNIFIED_DIM, generator=generator),
        "action_mask": steps,
        "valid": torch.arange(HORIZON) < torch.randint(1, HORIZON + 1, (ROWS, 1), generator=generator),
    }
    return tree_map(lambda leaf: leaf[rows], whole)


def learner_of(ranks: Ranks, gradient_accumulation_steps: int = 1, dtype: torch.dtype = torch.float64) -> RDTLearner:
    torch.manual_seed(0)
    tokens, there = hash_instructions(["open it", "close the drawer"])
    shape = RDTShape(HORIZON, UNIFIED_DIM, 8, 2, 2, 1, tokens.shape[-1], 64)
    policy = RDTPolicy(RDTSize(32, 2, 2), shape, PatchEncoder(64)).to(dtype)
    sizes = {
        "horizon": HORIZON,
        "exec_horizon": 2,
        "noise_steps": 20,
        "gradient_accumulation_steps": gradient_accumulation_steps,
    }
    config = RDTConfig(lr=1e-3, lr_warmup_updates=2, max_grad_norm=0.45, **sizes)  # clips some of the updates
    noise = NoiseSource(0, "cpu", ranks.rank)
    learner = RDTLearner(config, policy, RankContext(ranks, Precision("fp32", "cpu"), noise))
    learner.set_instructions(tokens, there)
    return learner


def learned(ranks: Ranks, gradient_accumulation_steps: int = 1) -> dict[str, torch.Tensor]:
    learner = learner_of(ranks, gradient_accumulation_steps)
    feed = BatchLoader(ROWS, BATCH // ranks.world_size, recorded, "cpu", 0, ranks.rank, ranks.world_size)
    seen, losses = [], []
    for number in range(UPDATES):
        seen.append(feed.indices(number))
        losses.append(learner.update(feed.next())["losses/rdt"])
    weights = torch.cat([weight.flatten() for weight in learner.policy.parameters()]).detach()
    return {"seen": torch.stack(seen), "losses": torch.stack(losses), "weights": weights}


def test_parts_of_a_batch_are_one_update() -> None:
    whole, parts = learned(Ranks()), learned(Ranks(), gradient_accumulation_steps=3)
    torch.testing.assert_close(parts["losses"], whole["losses"], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(parts["weights"], whole["weights"], rtol=1e-6, atol=1e-6)
