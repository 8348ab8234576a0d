"""Two gloo ranks learn an RDT as one rank does on the joint batch: with whole weights, with weights in shards (FSDP 2),
and with AdamW's moments in shards (DeepSpeed ZeRO).

One start of two ranks does all of it, because every rank imports torch, Accelerate and DeepSpeed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

pytest.importorskip("diffusers")
pytest.importorskip("accelerate")

from accelerate.state import AcceleratorState
from torch.distributed.tensor import DTensor

import runs
from distributed import sharded
from distributed.ranks import on_ranks
from distributed.sharded import PARTS, assert_same
from powerband.core.optim.deepspeed import STAGES, adam_for_launcher
from powerband.core.optim.precision import Precision
from powerband.core.ranks.ranks import Ranks
from powerband.data.types import tree_map
from powerband.recipes.libero.rdt import RDTLearner
from recipes.libero.test_rdt import demonstrated, learner
from recipes.libero.test_rdt_ranks import BATCH, ROWS, learned, learner_of

SHARDS = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "RDTBlock",
    "CUDA_VISIBLE_DEVICES": "",
}
"""Variables that `accelerate launch` sets for FSDP 2. Without devices, shards of CPU ranks lie on CPUs."""
ZERO = {"ACCELERATE_USE_DEEPSPEED": "true", "CUDA_VISIBLE_DEVICES": ""}
"""Variables that `accelerate launch` sets for DeepSpeed. Without devices, CPU ranks stay on CPUs."""
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="pip install 'powerband[deepspeed]'")


@contextmanager
def variables(added: dict[str, str]) -> Iterator[None]:
    """Sets environment variables inside the block, and restores all variables after it."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def on_each_rank(ranks: Ranks) -> dict[str, dict]:
    """Results of one rank, by name."""
    found = {"whole": learned(ranks), "parts": trained(ranks, 2)}
    with variables(SHARDS):
        found["weights in shards"] = sharded.learned(ranks, PARTS, torch.float64, weights)
    if find_spec("deepspeed"):
        with variables(ZERO):
            found |= with_zero(ranks)
    return found


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return on_ranks(on_each_rank, 2, tmp_path_factory.mktemp("ranks"))


# -- whole weights ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_are_one_on_the_joint_batch(two_ranks: list[dict]) -> None:
    alone = learned(Ranks())
    first, second = (each["whole"] for each in two_ranks)
    assert torch.equal(torch.cat([first["seen"], second["seen"]], 1), alone["seen"])
    epoch = alone["seen"][: ROWS // BATCH].flatten()
    assert sorted(epoch.tolist()) == list(range(ROWS)), "a sample was left out of the epoch, or seen twice"
    torch.testing.assert_close((first["losses"] + second["losses"]) / 2, alone["losses"], rtol=1e-6, atol=1e-9)
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=1e-6, atol=1e-6)


def trained(ranks: Ranks, parts: int) -> dict[str, Tensor]:
    """This rank's rows of three joint batches."""
    made = learner(ranks, double=True, gradient_accumulation_steps=parts)
    averaged = []

    def counted(group, bucket):  # DDP compares annotations, which are texts here
        averaged.append(bucket.is_last())
        return allreduce_hook(group, bucket)

    if ranks.world_size > 1:
        made.adam.prepared.register_comm_hook(None, counted)
    own = slice(ranks.rank * 12 // ranks.world_size, (ranks.rank + 1) * 12 // ranks.world_size)
    losses = []
    for number in range(3):
        batch = tree_map(lambda leaf: leaf[own], demonstrated(number))
        losses.append(ranks.average_(made.update(batch)["losses/rdt"].clone()))
    assert ranks.identical_on_all_ranks(list(made.policy_state().values()))
    assert sum(averaged) == (3 if ranks.world_size > 1 else 0)  # once an update, not once a part
    return {"losses": torch.stack(losses)} | {name: value.clone() for name, value in made.policy_state().items()}


def test_two_ranks_with_two_parts_each_are_one_rank_on_the_joint_batch(two_ranks: list[dict]) -> None:
    alone = trained(Ranks(), 1)
    first, second = (each["parts"] for each in two_ranks)  # in two parts each, of which one alone is averaged
    for name, value in alone.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-9, atol=1e-7)


# -- weights in shards ------------------------------------------------------------------------------------------------


def weights(learner: RDTLearner) -> int:
    """How many weights lie on this rank."""
    local = (each.to_local() if isinstance(each, DTensor) else each for each in learner.policy.parameters())
    return sum(each.numel() for each in local)


def test_two_ranks_with_shards_are_one_with_whole_weights(two_ranks: list[dict]) -> None:
    alone = sharded.learned(Ranks(), 1, torch.float64, weights)
    assert_same([each["weights in shards"] for each in two_ranks], alone, figures=1e-6, state=1e-6)


# -- moments in shards ------------------------------------------------------------------------------------------------


def moments(learner: RDTLearner) -> int:
    """How many weights this rank has the moments of."""
    return sum(of["exp_avg"].numel() for of in learner.adam.state_dict().values())


def with_zero(ranks: Ranks) -> dict[str, dict]:
    """One update in bfloat16, and the results of each stage."""
    found = {"bf16": stepped_in_bf16(ranks)}
    for stage in STAGES:
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = str(stage)
        AcceleratorState._reset_state(True)

        def held(learner: RDTLearner, stage: int = stage) -> int:
            assert learner.adam.prepared.zero_optimization_stage() == stage
            return moments(learner)

        found[f"zero {stage}"] = sharded.learned(ranks, PARTS, torch.float32, held)
    return found


def stepped_in_bf16(ranks: Ranks) -> dict:
    adam = adam_for_launcher(torch.nn.Linear(4, 4), 1e-3, ranks=ranks, precision=Precision("bf16", "cpu"))
    made, before = adam.forward(torch.ones(2, 4)), adam.net.weight.detach().clone()
    with torch.autocast("cpu", torch.bfloat16):  # which DeepSpeed may turn off
        inside = adam.forward(torch.ones(2, 4))
    adam.step(made.float().square().sum() + 0 * inside.float().sum())
    narrow = torch.tensor([each.dtype == torch.bfloat16 for each in (made, inside)])
    return {"narrow": narrow, "weight": adam.net.weight.detach().clone(), "before": before}


@needs_deepspeed
@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_with_shards_are_one_with_whole_moments(stage: int, two_ranks: list[dict]) -> None:
    alone = sharded.learned(Ranks(), 1, torch.float32, moments)
    shards = [each[f"zero {stage}"] for each in two_ranks]
    whole = assert_same(shards, alone, figures=1e-5, state=1e-4)
    one = learner_of(Ranks(), 1, torch.float32)
    one.load_state_dict(shards[0]["state"])  # what ranks with shards have saved is read by one without
    for name, leaf in runs.leaves(one.state_dict()):
        assert name not in whole or torch.equal(torch.as_tensor(leaf), torch.as_tensor(whole[name])), name


@needs_deepspeed
def test_products_are_of_the_precision_that_was_asked_for_and_weights_stay_float32(two_ranks: list[dict]) -> None:
    first, second = (each["bf16"] for each in two_ranks)
    assert first["narrow"].all() and first["weight"].dtype == torch.float32
    assert torch.equal(first["weight"], second["weight"]) and not torch.equal(first["weight"], first["before"])
