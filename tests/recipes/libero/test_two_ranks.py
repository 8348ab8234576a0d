"""Two gloo ranks train an RDT as one rank does on the joint batch: with whole weights, with weights in shards (FSDP 2),
and with AdamW's moments in shards (DeepSpeed ZeRO).

All tests share one start of two ranks, because every rank imports torch, Accelerate and DeepSpeed.
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
from recipes.libero.test_rdt import make_learner, random_batch
from recipes.libero.test_rdt_ranks import BATCH, ROWS, make_rank_learner, train_with_batch_loader

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
def environment(added: dict[str, str]) -> Iterator[None]:
    """Sets environment variables inside the block, and restores all variables after it."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def results_of_rank(ranks: Ranks) -> dict[str, dict]:
    """Returns the results of one rank: name -> dict of tensors."""
    results = {"whole": train_with_batch_loader(ranks), "parts": train_on_joint_batches(ranks, 2)}
    with environment(SHARDS):
        results["weights in shards"] = sharded.learned(ranks, PARTS, torch.float64, count_local_weights)
    if find_spec("deepspeed"):
        with environment(ZERO):
            results |= train_with_zero(ranks)
    return results


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return on_ranks(results_of_rank, 2, tmp_path_factory.mktemp("ranks"))


# -- whole weights ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_equal_one_rank_on_the_joint_batch(two_ranks: list[dict]) -> None:
    single = train_with_batch_loader(Ranks())
    first, second = (results["whole"] for results in two_ranks)
    assert torch.equal(torch.cat([first["indices"], second["indices"]], 1), single["indices"])
    epoch = single["indices"][: ROWS // BATCH].flatten()
    assert sorted(epoch.tolist()) == list(range(ROWS)), "a sample was left out of the epoch, or seen twice"
    torch.testing.assert_close((first["losses"] + second["losses"]) / 2, single["losses"], rtol=1e-6, atol=1e-9)
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], single["weights"], rtol=1e-6, atol=1e-6)


def train_on_joint_batches(ranks: Ranks, parts: int) -> dict[str, Tensor]:
    """Trains on this rank's rows of three joint batches; returns the losses and the averaged weights."""
    learner = make_learner(ranks, double=True, gradient_accumulation_steps=parts)
    last_buckets = []

    def recording_hook(group, bucket):  # DDP checks annotations, which are strings in this file
        last_buckets.append(bucket.is_last())
        return allreduce_hook(group, bucket)

    if ranks.world_size > 1:
        learner.adam.prepared.register_comm_hook(None, recording_hook)
    rows = slice(ranks.rank * 12 // ranks.world_size, (ranks.rank + 1) * 12 // ranks.world_size)
    losses = []
    for number in range(3):
        batch = tree_map(lambda leaf: leaf[rows], random_batch(number))
        losses.append(ranks.average_(learner.update(batch)["losses/rdt"].clone()))
    assert ranks.identical_on_all_ranks(list(learner.policy_state().values()))
    assert sum(last_buckets) == (3 if ranks.world_size > 1 else 0)  # once per update, not once per part
    return {"losses": torch.stack(losses)} | {name: value.clone() for name, value in learner.policy_state().items()}


def test_two_ranks_with_gradient_accumulation_equal_one_rank_on_the_joint_batch(two_ranks: list[dict]) -> None:
    single = train_on_joint_batches(Ranks(), 1)
    first, second = (results["parts"] for results in two_ranks)  # ranks average gradients in one of two parts only
    for name, value in single.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-9, atol=1e-7)


# -- weights in shards ------------------------------------------------------------------------------------------------


def count_local_weights(learner: RDTLearner) -> int:
    """Returns the number of weights that this rank stores."""
    local = (weight.to_local() if isinstance(weight, DTensor) else weight for weight in learner.policy.parameters())
    return sum(weight.numel() for weight in local)


def test_two_ranks_with_sharded_weights_equal_one_rank(two_ranks: list[dict]) -> None:
    single = sharded.learned(Ranks(), 1, torch.float64, count_local_weights)
    assert_same([results["weights in shards"] for results in two_ranks], single, figures=1e-6, state=1e-6)


# -- moments in shards ------------------------------------------------------------------------------------------------


def count_local_moments(learner: RDTLearner) -> int:
    """Returns the number of weights whose moments this rank stores."""
    return sum(state["exp_avg"].numel() for state in learner.adam.state_dict().values())


def train_with_zero(ranks: Ranks) -> dict[str, dict]:
    """Returns the results of one update in bfloat16, and of training with each ZeRO stage."""
    results = {"bf16": update_in_bf16(ranks)}
    for stage in STAGES:
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = str(stage)
        AcceleratorState._reset_state(True)

        def count_moments_of_stage(learner: RDTLearner, stage: int = stage) -> int:
            assert learner.adam.prepared.zero_optimization_stage() == stage
            return count_local_moments(learner)

        results[f"zero {stage}"] = sharded.learned(ranks, PARTS, torch.float32, count_moments_of_stage)
    return results


def update_in_bf16(ranks: Ranks) -> dict:
    """Takes one step in bfloat16; returns whether outputs are bfloat16, and the weight before and after the step."""
    adam = adam_for_launcher(torch.nn.Linear(4, 4), 1e-3, ranks=ranks, precision=Precision("bf16", "cpu"))
    output, before = adam.forward(torch.ones(2, 4)), adam.net.weight.detach().clone()
    with torch.autocast("cpu", torch.bfloat16):  # DeepSpeed may disable it
        autocast_output = adam.forward(torch.ones(2, 4))
    adam.step(output.float().square().sum() + 0 * autocast_output.float().sum())
    is_bf16 = torch.tensor([tensor.dtype == torch.bfloat16 for tensor in (output, autocast_output)])
    return {"is_bf16": is_bf16, "weight": adam.net.weight.detach().clone(), "before": before}


@needs_deepspeed
@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_with_sharded_moments_equal_one_rank(stage: int, two_ranks: list[dict]) -> None:
    single = sharded.learned(Ranks(), 1, torch.float32, count_local_moments)
    shards = [results[f"zero {stage}"] for results in two_ranks]
    compared = assert_same(shards, single, figures=1e-5, state=1e-4)
    learner = make_rank_learner(Ranks(), 1, torch.float32)
    learner.load_state_dict(shards[0]["state"])  # one rank loads the state of sharded ranks
    for name, value in runs.leaves(learner.state_dict()):
        assert name not in compared or torch.equal(torch.as_tensor(value), torch.as_tensor(compared[name])), name


@needs_deepspeed
def test_products_have_the_configured_precision_and_weights_stay_float32(two_ranks: list[dict]) -> None:
    first, second = (results["bf16"] for results in two_ranks)
    assert first["is_bf16"].all() and first["weight"].dtype == torch.float32
    assert torch.equal(first["weight"], second["weight"]) and not torch.equal(first["weight"], first["before"])
